"""Ranks as processes that TCP connects: the bits of ranks as threads, and faults of ranks and strangers."""
import os
import pathlib
import re
import socket
import time

from support import BIN, main, run, text, train
from support_faults import Job
from support_ranks import MOE, base, same_bits
from support_tcp import PATIENT, command, environment, free_port, launch, rank

SECONDS = 2
FAULTS = BIN / "mpi_fault_program"


def collectives_have_the_same_bits(folder):
    """Every collective, dtype and kind of shape."""
    for ranks in (2, 4):
        threads, processes = pathlib.Path(folder, f"t{ranks}"), pathlib.Path(folder, f"p{ranks}")
        threads.mkdir()
        processes.mkdir()
        assert run("mpi_bits_program", threads, ranks).returncode == 0
        done = launch(ranks, BIN / "mpi_bits_program", processes)
        assert done.returncode == 0, done.stderr
        for r in range(ranks):
            want = (threads / str(r)).read_text()
            assert len(want.splitlines()) > 400
            assert (processes / str(r)).read_text() == want, (ranks, r)


def trainers_have_the_same_bits(folder):
    layouts = ((2, "train_gpt", ["--zero"]),
               (4, "train_moe", [*MOE, "--aux", "bias", "--mtp", "1", "--tp", "2", "--sp", "--ep", "2", "--zero"]))
    for i, (ranks, program, more) in enumerate(layouts):
        train(*base(folder, f"{i}threads", *more, "--ranks", ranks), program=program)
        done = launch(ranks, BIN / program, *base(folder, f"{i}tcp", *more, "--backend", "tcp"))
        assert done.returncode == 0, (program, done.stderr)
        same_bits(folder, f"{i}threads", f"{i}tcp")


def faulty(folder, ranks, fault, *parts, seconds=SECONDS, flags=PATIENT):
    """Ranks other than rank 1 print all of `parts` and dump their latest collectives."""
    records = pathlib.Path(folder, f"{fault}{ranks}")
    records.mkdir()
    job = Job(command(ranks, FAULTS, fault, seconds, records, flags=flags), environment())
    done = job.end()
    assert done.returncode != 0, (fault, done)
    job.check_time(f"{fault}, {ranks} ranks", records / "fault", 0 if seconds > SECONDS else seconds)
    lines = [line for line in done.stderr.splitlines()
             if re.match(r"rank \d+: error: ", line) and not line.startswith("rank 1: ")]
    assert len(lines) == ranks - 1, done.stderr
    for line in lines:
        assert all(part in line for part in parts), (ranks, line)
        record = (records / f"rank_{line.split()[1][:-1]}.txt").read_text()
        # Rank 1 may be lost while a slower rank is still in the barrier that rank 1 has left.
        assert "1 barrier 1 of group world u8 out 0 in 0 done" in record, record
        assert "2 barrier 2 of group world u8 out 0 in 0 " in record, record
    return done


COME = "all_reduce 3 of group world, f32 [1000]: rank 1 did not come within 2 s: "


def gone(folder):
    """At once, and not after the ten minutes that a collective may take here."""
    for ranks in (2, 4):
        # A rank names the collective that it is in, or the last one.
        done = faulty(folder, ranks, "kill", "rank 1 was lost: its connection was closed", " of group world",
                      seconds=600)
        assert done.returncode == 137, done
        assert done.stderr.count("weft_launch: rank 1 was killed by signal 9\n") == 1, done.stderr
    faulty(folder, 4, "exit_now", "rank 1 was lost: its connection was closed", seconds=600)
    faulty(folder, 4, "exit", "rank 1 has ended, and rank ", seconds=600)
    done = faulty(folder, 4, "throw", "error: rank 1 has ended with an error", seconds=600)
    assert "rank 1: error: bad luck\n" in done.stderr, done.stderr


def hangs(folder):
    """The launcher ends a rank that is stopped or computes for ever."""
    faulty(folder, 2, "compute", COME + "it has called nothing since barrier 2 of group world u8", flags=("--grace", "1"))
    done = faulty(folder, 2, "stop", COME + "it does not answer, so it was stopped or has died", flags=("--grace", "1"))
    assert done.returncode == 1, done
    assert "weft_launch: rank 1 did not end within 1 s after rank 0: killed\n" in done.stderr, done


def calls_something_else(folder):
    faulty(folder, 4, "kind", "all ranks of a group must make the same calls: rank ",
           "rank 1 called all_reduce max 3 of group world, f32 [1000]")


def nobody_waits(folder):
    """A collective that fails, whose Work was dropped."""
    done = launch(2, FAULTS, "dropped", SECONDS, folder)
    assert done.returncode == 1, done
    assert "error: all ranks of a group must give the same rows: rank " in done.stderr, done.stderr
    assert done.stderr.count("error: ") == 1, done.stderr


def absent(folder):
    """Rank 1 ends before it creates its world."""
    job = Job(command(3, FAULTS, "absent", 2, folder, flags=PATIENT), environment())
    done = job.end()
    job.check_time("absent", pathlib.Path(folder, "fault"), 10)
    missing = r"tcp_world: rank 1 did not come to 127\.0\.0\.1:\d+ within 10 s"
    for r in (0, 2):
        assert re.search(rf"rank -1: error: {missing}", done.stderr), done.stderr
    assert done.returncode == 1 and done.stderr.count("error: ") == 2, done.stderr


def begins_late(folder):
    done = launch(2, FAULTS, "begins late", SECONDS, folder)
    assert done.returncode == 0 and done.stderr.count(": well\n") == 2, done


def of_one_rank(folder, name, before, args):
    """A trainer on two ranks, of which rank 1 runs shell commands first. Returns the status, its error lines and the job."""
    script = f"[ $RANK != 1 ] || {{ {before}; }}; exec {BIN}/train_gpt \"$@\""
    job = Job(command(2, "bash", "-c", script, "bash", *args, "--out", f"{folder}/{name}", flags=PATIENT),
              environment(), cwd=folder)
    done = job.end()
    return done.returncode, done.stderr.splitlines(), job


def what_one_rank_has_for_itself(folder):
    """Other data, and a full disk."""
    words = pathlib.Path(text(folder)).read_text()
    for place, copy in ((folder, words), (f"{folder}/away", words.replace("dog", "pig"))):
        pathlib.Path(place).mkdir(exist_ok=True)
        pathlib.Path(place, "copy.txt").write_text(copy)
    args = [*base(folder, ""), "--data", "copy.txt", "--zero", "--save-every", "2"]
    status, lines, _ = of_one_rank(folder, "copies", "cd away", args)
    assert status == 2 and len(lines) == 1, (status, lines)
    assert "train_gpt: training data: all ranks must read the same, and rank 1's " in lines[0], lines
    status, lines, job = of_one_rank(folder, "full", "export WEFT_TEST_DISK_FULL_AFTER=2000", args)
    job.check_time("full disk", pathlib.Path(folder, "full", "metrics.jsonl"))
    assert status == 1 and len(lines) == 1, (status, lines)
    assert lines[0].startswith("train_gpt: save_checkpoint: rank 1: write: cannot write '"), lines
    assert not list(pathlib.Path(folder, "full", "checkpoints").glob("step_*")), lines


def a_slow_disk_of_one_rank(folder):
    """The others wait for longer than a collective may take, but not for a rank that is killed meanwhile."""
    args = [*base(folder, ""), "--zero", "--save-every", "8", "--timeout", SECONDS]
    slow = "export WEFT_TEST_DISK_BYTES_PER_S=2e4"
    status, lines, _ = of_one_rank(folder, "slow", slow, args)
    assert status == 0 and lines, (status, lines)
    assert all("save_checkpoint: ranks have waited " in line and " s for rank 1 to write" in line for line in lines), lines
    status, lines, job = of_one_rank(folder, "killed", f"{slow} WEFT_TEST_KILL=1:8:save:70", args)
    job.check_time("killed in a slow save", pathlib.Path(folder, "killed", "metrics.jsonl"))
    lines = [line for line in lines if line != "weft_launch: rank 1 was killed by signal 9"]
    assert status == 137 and len(lines) == 1, (status, lines)
    assert "rank 1 was lost: " in lines[0] and " of group world" in lines[0], lines


def ends(processes, seconds=120):
    return [(p.communicate(timeout=seconds), p.returncode) for p in processes]


def strangers(folder):
    """Whatever comes to the port, a job starts, and others are told why theirs does not."""
    port = free_port()
    job = [rank(0, 2, port, FAULTS, "none", 60)]
    deadline = time.time() + 120
    while True:
        try:
            garbage = socket.create_connection(("127.0.0.1", port), timeout=5)
            break
        except ConnectionRefusedError:
            assert time.time() < deadline
            time.sleep(0.02)
    garbage.sendall(b"\xff" * 5000)
    (_, other), status = ends([rank(1, 2, port, FAULTS, "none", 60, token="wrong")])[0]
    assert status == 2 and other == (f"rank -1: error: tcp_world: rank 0 at 127.0.0.1:{port} refused rank 1: its "
                                     "WEFT_TOKEN is another one\n"), other
    (_, second), status = ends([rank(0, 2, port, FAULTS, "none", 60)])[0]
    assert status == 1 and second == (f"rank -1: error: tcp: port {port} of 127.0.0.1 is in use, perhaps by "
                                      "another job; set another MASTER_PORT\n"), second
    job.append(rank(1, 2, port, FAULTS, "none", 60))
    for (_, errors), status in ends(job):
        assert status == 0 and "well" in errors, errors
    garbage.close()


def processors_are_shared(folder):
    """Ranks divide the processors unless the number of threads is given."""
    for env, want in (({}, max(1, len(os.sched_getaffinity(0)) // 2)), ({"OMP_NUM_THREADS": "3"}, 3)):
        done = launch(2, "env", *(() if env else ("-uOMP_NUM_THREADS",)), FAULTS, "threads", env=env)
        assert done.returncode == 0 and done.stderr.count(f": {want} threads\n") == 2, (want, done)


if __name__ == "__main__":
    main([collectives_have_the_same_bits, trainers_have_the_same_bits, gone, hangs, calls_something_else, nobody_waits, absent,
          begins_late, what_one_rank_has_for_itself, a_slow_disk_of_one_rank,
          strangers, processors_are_shared], at_once=4)
