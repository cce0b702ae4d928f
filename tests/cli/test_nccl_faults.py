"""A rank over NCCL, found over MPI or TCP, that dies, stops, computes or cannot connect: every rank ends, and
one line names the rank. NCCL is emulated."""
import pathlib
import time

from support import BIN, main
from support_mpi import run_ranks
from support_tcp import launch

SECONDS = 4
LIMIT = 90  # of a whole run, on a busy machine


def faulty(folder, fault, *parts, ranks=2, seconds=SECONDS):
    """Returns the lines of all ranks; one of them must have all of `parts`."""
    records = pathlib.Path(folder, f"{fault}{ranks}")
    begin = time.time()
    done = run_ranks(ranks, "env", "WEFT_EMU_DEVICES=4", BIN / "nccl_fault_program", fault, seconds, records)
    took = time.time() - begin
    assert done.returncode != 0, (fault, done)
    assert took < LIMIT, (fault, took)
    lines = [line for line in done.stderr.splitlines() if line.startswith(("error: ", "rank "))]
    assert any(all(part in line for part in parts) for line in lines), (fault, done.stderr)
    return lines, records


def well(folder):
    done = run_ranks(2, BIN / "nccl_fault_program", "", SECONDS)
    assert done.returncode == 0 and not done.stderr, done


SECOND = "all_reduce 1 of group world sum f32 [1000] did not end within 4 s on rank "


def throws(folder):
    """At once: collectives may take ten minutes here."""
    for ranks in (2, 4):
        lines, _ = faulty(folder, "throw", "rank 1: bad luck", ranks=ranks, seconds=600)
        assert len(lines) == 1, lines


def over_tcp(folder):
    """The id, the questions and the failure of a job go over TCP as well."""
    program = BIN / "nccl_fault_program"
    env = {"WEFT_EMU_DEVICES": "4"}
    done = launch(2, program, "", SECONDS, env=env)
    assert done.returncode == 0 and not done.stderr, done
    done = launch(2, program, "throw", 600, env=env)
    assert done.returncode in (1, 2) and done.stderr == "error: rank 1: bad luck\n", done
    done = launch(2, program, "compute", SECONDS, env=env)
    assert SECOND + "0: rank 1 did not come: it has called nothing since all_reduce 0 of group world" in (
        done.stderr), done


def computes(folder):
    _, records = faulty(folder, "compute", SECOND + "0: rank 1 did not come: it has called nothing since "
                                "all_reduce 0 of group world sum f32 [1000]")
    record = (records / "rank_0.txt").read_text()
    assert "\n0 all_reduce 0 of group world sum f32 out 1000 in 1000 done" in record, record
    assert "\n1 all_reduce 1 of group world sum f32 out 1000 in 1000 enqueued" in record, record


def stops(folder):
    faulty(folder, "stop", SECOND, "rank 1 does not answer, so it was stopped or has died", ranks=4)


def network(folder):
    lines, _ = faulty(folder, "error", "rank 1: nccl: remote process exited or there was a network error",
                      seconds=600)
    assert len(lines) == 1, lines


def does_not_connect(folder):
    faulty(folder, "connect", "connecting group world did not end within 4 s on rank ")


def does_not_abort(folder):
    faulty(folder, "stuck", "NCCL did not abort within 2 s after the job has failed: " + SECOND)


main([well, throws, over_tcp, computes, stops, network, does_not_connect, does_not_abort], at_once=6)
