"""Starts ranks as processes."""
import pathlib
import re
import subprocess

RUN_RANKS = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "run_ranks.sh"


def command(ranks, program, *args):
    return [str(RUN_RANKS), str(ranks), str(program), *map(str, args)]


def run_ranks(ranks, program, *args, timeout=120):
    return subprocess.run(command(ranks, program, *args), capture_output=True, text=True, errors="replace",
                          timeout=timeout)


def with_words(start, folder, attempts=5):
    """Runs the job `start(folder)`, again if none of its ranks printed an error; returns it with its folder. mpirun kills
    the ranks of a job that has lost one after two seconds, in which they print nothing on a machine that stands still."""
    for attempt in range(attempts):
        own = pathlib.Path(folder, f"attempt{attempt}")
        own.mkdir(parents=True)
        done = start(own)
        if re.search(r"^(rank \d+: error|train_\w+): ", done.stderr, re.MULTILINE):
            return done, own
    raise AssertionError(done)
