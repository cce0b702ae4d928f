"""Training that loses a rank: the job ends, says which, and the last checkpoint loads."""
import os
import pathlib
import signal
import subprocess
import time

from support import BIN, main, metrics, run, text, train
from support_mpi import RUN_RANKS

SMALL = ["--layers", "2", "--heads", "2", "--dim", "32", "--seq", "32", "--batch", "4",
         "--val-fraction", "0.01", "--threads", "1"]


def start(folder, out, ranks, *args, program="train_gpt"):
    command = [str(RUN_RANKS), str(ranks), str(BIN / program), "--data", text(folder),
               "--out", f"{folder}/{out}", *SMALL, "--steps", "100000", "--save-every", "1",
               "--schedule", "constant", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            errors="replace", start_new_session=True)


def process_of(rank, out):
    """The process of a rank that trains into this folder."""
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if b"OMPI_COMM_WORLD_RANK=%d" % rank in environment and out.encode() in words:
            return int(entry.name)
    raise AssertionError(f"rank {rank} of {out} is not running")


def wait_for_steps(out, steps, seconds=60):
    log = pathlib.Path(out) / "metrics.jsonl"
    deadline = time.time() + seconds
    while not (log.exists() and log.read_bytes().count(b"\n") >= steps):
        assert time.time() < deadline, f"{out} makes no steps"
        time.sleep(0.005)


def end(process, seconds):
    try:
        _, errors = process.communicate(timeout=seconds)
        return errors
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError("the job did not end")


def killed(folder):
    """20 times, at moments that fall into forward, backward, a collective and a save."""
    for i in range(20):
        out = f"{folder}/killed{i}"
        layout = (["--zero"], ["--tp", "2"], ["--tp", "2", "--sp"], [])[i % 4]
        process = start(folder, f"killed{i}", 2, *layout)
        wait_for_steps(out, 2)
        time.sleep(0.003 * i)
        victim = i // 2 % 2
        os.kill(process_of(victim, out), signal.SIGKILL)
        errors = end(process, 60)
        assert process.returncode != 0, errors
        assert f"rank {victim}" in errors, errors
        done = run("generate", "--checkpoint", out, "--prompt", "the", "--tokens", "1")
        assert done.returncode == 0, (i, done.stderr)
    # What is left goes on, in another layout.
    step = metrics(out)[-1]["step"]
    train("--data", text(folder), "--out", out, *SMALL, "--schedule", "constant", "--resume",
          "--steps", step + 2)
    assert metrics(out)[-1]["step"] == step + 2


def stops(folder, name, how, *then):
    """A job is told to stop in steps that take longer than mpirun would wait; returns its status."""
    process = start(folder, name, 2, "--dim", "256", "--heads", "4", "--layers", "4", "--seq", "256",
                    "--batch", "16", "--save-every", "0")
    out = f"{folder}/{name}"
    wait_for_steps(out, 1)
    how(process)
    for signal_again in then:
        time.sleep(0.2)
        process.send_signal(signal_again)
    errors = end(process, 120)
    saved = pathlib.Path(out, "checkpoints", f"step_{metrics(out)[-1]['step']:08d}")
    return process.returncode, saved.exists(), errors


def interrupted(folder):
    """Ctrl-C in the terminal."""
    done = stops(folder, "interrupted", lambda p: os.killpg(p.pid, signal.SIGINT))
    assert done[:2] == (130, True), done
    assert run("generate", "--checkpoint", f"{folder}/interrupted", "--tokens", "1").returncode == 0


def terminated(folder):
    """What a queue or a closed terminal sends to the script: the same; a second one ends the job."""
    for sent in (signal.SIGTERM, signal.SIGHUP):
        done = stops(folder, sent.name, lambda p: p.send_signal(sent))
        assert done[:2] == (130, True), (sent, done)
    status, saved, _ = stops(folder, "twice", lambda p: p.send_signal(signal.SIGTERM), signal.SIGTERM)
    assert status != 0 and not saved, (status, saved)


if __name__ == "__main__":
    main([killed, interrupted, terminated])
