"""A rank that stops, dies, ends early or calls another collective is detected and named, and every
rank ends. Collectives have 2 seconds to finish here; in most cases MPI itself would wait
forever."""
import os
import pathlib
import re

from support import BIN, main
from support_faults import Job
from support_mpi import command, run_ranks, with_words

SECONDS = 2


def start(folder, ranks, fault, timeout_s=SECONDS):
    """Runs a job; `timeout_s` is after how long the ranks notice the fault."""
    job = Job(command(ranks, BIN / "mpi_fault_program", fault, SECONDS, folder))
    done = job.end()
    if (sign := pathlib.Path(folder, "fault")).exists():
        job.check_time(f"{fault}, {ranks} ranks", sign, timeout_s)
    return done


def faulty(folder, ranks, fault, *parts, timeout_s=SECONDS):
    """Ranks other than rank 1 must print all of `parts` and dump their latest collectives. On a
    busy machine mpirun may end one of them before it prints, but not all of them."""
    records = pathlib.Path(folder, f"{fault}{ranks}")
    records.mkdir()
    done = start(records, ranks, fault, timeout_s)
    assert done.returncode != 0, (fault, done)
    lines = [line for line in done.stderr.splitlines()
             if re.match(r"rank \d+: error: ", line) and not line.startswith("rank 1: ")]
    assert lines, done.stderr
    for line in lines:
        assert all(part in line for part in parts), (ranks, line)
        record = (records / f"rank_{line.split()[1][:-1]}.txt").read_text()
        assert "2 barrier 2 of group world u8 out 0 in 0 done" in record, record
    return done


def each(folder, fault, *parts, sizes=(4,), **how):
    return [faulty(folder, ranks, fault, *parts, **how) for ranks in sizes]


COME = "all_reduce 3 of group world, f32 [1000]: rank 1 did not come within 2 s: "
GONE = "all_reduce 3 of group world, f32 [1000]: rank 1 was lost: its process has ended"


def lines_of_ranks(done):
    return {line.split(": error: ")[1] for line in done.stderr.splitlines() if ": error: " in line}


def killed(folder):
    """mpirun names the rank, the others the rank and the collective."""
    for ranks in (2, 4):
        done, _ = with_words(lambda own: start(own, ranks, "kill", 0), f"{folder}/{ranks}")
        assert done.returncode == 137 and lines_of_ranks(done) == {GONE}, done
        assert "rank 1 with PID" in done.stderr and "signal 9" in done.stderr, done.stderr


def left_without_a_word(folder):
    done, _ = with_words(lambda own: start(own, 4, "exit_now", 0), folder)
    assert done.returncode != 0 and lines_of_ranks(done) == {GONE} and "rank 1 with PID" in done.stderr, done


def stopped(folder):
    each(folder, "stop", COME + "it does not answer, so it was stopped or has died",
         sizes=(2, 4))


def stopped_far_away(folder):
    """The first rank to time out does not wait for the stopped rank directly but still names it."""
    done = start(folder, 4, "far")
    assert done.returncode != 0
    assert ("all_reduce 0 of group pair, f32 [1000]: rank 1 did not come within 2 s: it is in barrier "
            "0 of group far; rank 3 does not answer, so it was stopped or has died\n") in done.stderr, (
                done.stderr)


def computes(folder):
    each(folder, "compute", COME + "it has called nothing since barrier 2 of group world u8",
         sizes=(2, 4))


def ended(folder):
    each(folder, "exit", "rank 1 has ended, and rank ",
         " waits for it in all_reduce 3 of group world, f32 [1000]", sizes=(2, 4),
         timeout_s=0)


def threw(folder):
    for done in each(folder, "throw", "error: rank 1 has ended with an error", sizes=(2, 4), timeout_s=0):
        assert "rank 1: error: bad luck\n" in done.stderr, done.stderr


def threw_elsewhere(folder):
    """A collective without rank 1 completes; the next one with rank 1 ends the job."""
    done, = each(folder, "throw_elsewhere", "error: rank 1 has ended with an error")
    for rank in (2, 3):
        assert f"rank {rank}: this far\n" in done.stderr, done.stderr


def skipped(folder):
    """Rank 1 skips a collective and waits at a barrier of a smaller group for rank 0."""
    for done in each(folder, "skip"):
        assert (COME + "it is in barrier 0 of group pair" in done.stderr or
                "barrier 0 of group pair: rank 0 did not come within 2 s: it is in all_reduce 3 of "
                "group world, f32 [1000]" in done.stderr), done.stderr


def called_something_else(folder):
    same, well = "all ranks of a group must ", "called all_reduce 3 of group world, f32 [1000]"
    each(folder, "kind", same + "make the same calls: rank ",
         "rank 1 called all_reduce max 3 of group world, f32 [1000]", well)
    each(folder, "count", same + "give the same rows: rank ",
         "rank 1 called all_reduce 3 of group world, f32 [999]", well, sizes=(2, 4))
    each(folder, "dtype", same + "give the same dtype: rank ",
         "rank 1 called all_reduce 3 of group world, i32 [1000]", well)
    faulty(folder, 2, "group", "world: every rank must make the same calls of group() in the same order: "
           "call 2, group ")
    each(folder, "rows", "rank 1 must expect what rank 0 sends, 12 elements, got 8: rank 0 called "
         "all_to_all 3 of group world, f32 ")


def nobody_waits(folder):
    """A collective that fails, whose Work was dropped."""
    done = start(folder, 2, "dropped")
    assert done.returncode != 0, done
    assert "error: all ranks of a group must give the same rows: rank " in done.stderr, done.stderr


def missing_in_one_lane(folder):
    """Collectives of another lane complete meanwhile."""
    missing = "all_reduce 0 of group data, f32 [1000]: rank 1 did not come within 2 s: it "
    each(folder, "lane", missing + "has called nothing since all_reduce 7 of group world max f32")
    each(folder, "lane_stop", missing + "does not answer, so it was stopped or has died")


def stopped_at_the_end(folder):
    each(folder, "late", "error: rank ", " has ended; these ranks have not, and do not answer, so they "
         "were stopped or have died: 1", sizes=(2, 4))


def absent(folder):
    """Rank 1 ends before it creates its world."""
    done = start(folder, 2, "absent", 30)
    assert done.returncode != 0
    assert "error: mpi_world: not every rank came within 30 s\n" in done.stderr, done.stderr


def one_thread(folder):
    """Another library has initialised MPI for a single thread."""
    done = start(folder, 2, "single")
    assert done.returncode != 0
    assert ("rank -1: error: mpi_world: MPI must allow calls from more than one thread "
            "(MPI_THREAD_SERIALIZED, 2), got level 0; call MPI_Init_thread with it, or use an MPI "
            "built with threads\n") in done.stderr, done.stderr


def nothing_wrong(folder):
    for ranks, status in ((1, 2), (2, 0), (4, 0)):  # a job of one rank has no group of two
        assert start(folder, ranks, "none").returncode == status
        assert not list(pathlib.Path(folder).iterdir())
    assert start(folder, 2, "begins late").returncode == 0


def threads(folder):
    """Ranks divide the processors unless the number of threads is given."""
    for how, told, want in (("threads", "-uOMP_NUM_THREADS", len(os.sched_getaffinity(0)) // 2 or 1),
                            ("threads", "OMP_NUM_THREADS=3", 3),
                            ("three threads", "-uOMP_NUM_THREADS", 3)):
        done = run_ranks(2, "env", told, BIN / "mpi_fault_program", how)
        assert done.returncode == 0 and done.stderr.count(f": {want} threads\n") == 2, (how, told, done)


if __name__ == "__main__":
    main([called_something_else, nothing_wrong, threads, absent, one_thread, killed, left_without_a_word, stopped, computes, ended, threw,
          threw_elsewhere, stopped_far_away, skipped, nobody_waits, missing_in_one_lane, stopped_at_the_end], at_once=6)
