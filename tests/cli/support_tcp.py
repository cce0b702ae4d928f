"""Starts ranks as processes without MPI."""
import os
import pathlib
import socket
import subprocess

from support import BIN

# For ranks that end by themselves, also on a slow machine.
PATIENT = ("--grace", "60")
LAUNCH = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "launch.sh"


def environment(env=None):
    return {**os.environ, "WEFT_LAUNCH": str(BIN / "weft_launch"), **(env or {})}


def command(ranks, program, *args, flags=()):
    return [str(LAUNCH), "-n", str(ranks), *map(str, flags), str(program), *map(str, args)]


def launch(ranks, program, *args, flags=(), env=None, timeout=120):
    return subprocess.run(command(ranks, program, *args, flags=flags), capture_output=True, text=True,
                          errors="replace", timeout=timeout, env=environment(env))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def rank(number, size, port, program, *args, token="secret"):
    """One rank, started by hand."""
    return subprocess.Popen(
        [str(program), *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace", env={**os.environ, "RANK": str(number), "WORLD_SIZE": str(size),
                               "MASTER_PORT": str(port), "WEFT_TOKEN": token})
