"""A rank over NCCL, found over MPI or TCP, that dies, stops, computes or cannot connect: every rank ends, and
one line names the rank. NCCL is emulated."""
import pathlib

import support_mpi
import support_tcp
from support import BIN, main
from support_faults import Job

SECONDS = 4
PROGRAM = BIN / "nccl_fault_program"
ENV = support_tcp.environment({"WEFT_EMU_DEVICES": "4"})


def ended(folder, fault, ranks=2, seconds=SECONDS, command=support_mpi.command, after=0):
    """A job and the folder of its records; `after`: seconds that NCCL's abort may take."""
    records = pathlib.Path(folder, f"{fault}{ranks}")
    records.mkdir()
    job = Job(command(ranks, PROGRAM, fault, seconds, records), ENV)
    done = job.end()
    assert done.returncode != 0, (fault, done)
    job.check_time(f"{fault}, {ranks} ranks", records / "fault", after + (0 if seconds > SECONDS else seconds))
    return done, records


def faulty(folder, fault, *parts, **how):
    """Returns the lines of all ranks; one of them must have all of `parts`."""
    done, records = ended(folder, fault, **how)
    lines = [line for line in done.stderr.splitlines() if line.startswith(("error: ", "rank "))]
    assert any(all(part in line for part in parts) for line in lines), (fault, done.stderr)
    return lines, records


def well(folder):
    done = support_mpi.run_ranks(2, PROGRAM, "", SECONDS)
    assert done.returncode == 0 and not done.stderr, done


def begins_late(folder):
    """After its peer, and again after it has found its peer."""
    for command in support_mpi.command, support_tcp.command:
        done = Job(command(2, PROGRAM, "begins late", SECONDS), ENV).end()
        assert done.returncode == 0 and not done.stderr, done


SECOND = "all_reduce 1 of group world sum f32 [1000] did not end within 4 s on rank "


def throws(folder):
    """At once: collectives may take ten minutes here."""
    for ranks in (2, 4):
        lines, _ = faulty(folder, "throw", "rank 1: bad luck", ranks=ranks, seconds=600)
        assert len(lines) == 1, lines


def over_tcp(folder):
    """The id, the questions and the failure of a job go over TCP as well."""
    done = support_tcp.launch(2, PROGRAM, "", SECONDS, env=ENV)
    assert done.returncode == 0 and not done.stderr, done
    done, _ = ended(folder, "throw", seconds=600, command=support_tcp.command)
    assert done.returncode in (1, 2) and done.stderr == "error: rank 1: bad luck\n", done
    done, _ = ended(folder, "compute", command=support_tcp.command)
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


def drops(folder):
    """The Work of the collective that fails is dropped, so nothing throws."""
    for command in support_mpi.command, support_tcp.command:
        name = command.__module__
        pathlib.Path(folder, name).mkdir()
        lines, _ = faulty(pathlib.Path(folder, name), "drop", "error: rank 1: nccl: remote process exited or there was a "
                          "network error", seconds=600, command=command)
        assert len(lines) == 1, lines


def does_not_connect(folder):
    faulty(folder, "connect", "connecting group world did not end within 4 s on rank ")


def does_not_abort(folder):
    faulty(folder, "stuck", "NCCL did not abort within 2 s after the job has failed: " + SECOND)


main([well, begins_late, throws, over_tcp, computes, stops, network, drops, does_not_connect, does_not_abort], at_once=6)
