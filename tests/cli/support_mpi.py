"""Starts ranks as processes."""
import pathlib
import subprocess

RUN_RANKS = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "run_ranks.sh"


def command(ranks, program, *args):
    return [str(RUN_RANKS), str(ranks), str(program), *map(str, args)]


def run_ranks(ranks, program, *args, timeout=120):
    return subprocess.run(command(ranks, program, *args), capture_output=True, text=True, errors="replace",
                          timeout=timeout)
