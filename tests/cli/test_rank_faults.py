"""Training that loses a rank: the job ends and names the rank, and the last checkpoint loads."""
import os
import pathlib
import re
import signal
import subprocess
import time

from support import BIN, main, metrics, run, text, train
from support_faults import Job
from support_mpi import command, with_words

SMALL = ["--layers", "2", "--heads", "2", "--dim", "32", "--seq", "32", "--batch", "4",
         "--val-fraction", "0.01", "--threads", "1"]


def flags(folder, out, *args):
    return ["--data", text(folder), "--out", str(pathlib.Path(folder, out)), *SMALL, "--save-every", "1", "--schedule", "constant",
            *args]


def start(folder, out, ranks, *args):
    return subprocess.Popen(command(ranks, BIN / "train_gpt", *flags(folder, out, *args)), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)


def wait_for_steps(out, steps, seconds=200):
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


def killed_at(folder, ranks, victim, when, *args, program="train_gpt"):
    """The victim's process is killed in step 3; earlier checkpoints and metrics survive. Returns the run's folder."""
    def start(own):
        job = Job(command(ranks, BIN / program, *flags(folder, own, "--steps", "5", *args)),
                  {**os.environ, "WEFT_TEST_KILL": f"{victim}:3:{when}"})
        ended = job.end()
        job.check_time(f"{when} {' '.join(args)}", own / "metrics.jsonl")
        return ended

    ended, out = with_words(start, pathlib.Path(folder, "".join([when, *args])))
    assert ended.returncode == 137, (when, ended)
    assert f"rank {victim} with PID" in ended.stderr and "signal 9" in ended.stderr, (when, ended)
    lost = f"rank {victim} was lost: its process has ended"
    said = [line for line in ended.stderr.splitlines() if line.startswith(f"{program}: ")]
    assert len(said) == 1, (when, ended)
    # The second if the rank that speaks was computing.
    assert re.search(rf" \d+ of group [^;]*: {lost}$|: {lost}; rank \d was in no collective: .* of group ", said[0]), (when, said)
    done = run("generate", "--checkpoint", out, "--prompt", "the", "--tokens", "1")
    assert done.returncode == 0, (when, done.stderr)
    steps = [row["step"] for row in metrics(out)]
    assert steps in ([1, 2], [1, 2, 3]), (when, steps)
    return out


def killed(folder):
    """Five kills each in forward, in backward, with gradients in flight and in a save, and one in the gather of a unit."""
    layouts = ["--zero"], ["--tp", "2"], ["--tp", "2", "--sp"], [], ["--fsdp"]
    for i, layout in enumerate(layouts):
        for j, phase in enumerate(("forward", "backward", "update", f"save:{2 * i}")):
            out = killed_at(folder, 2, (i + j) % 2, phase, *layout)
    killed_at(folder, 2, 1, "gather:1", "--fsdp")
    # The run continues from its checkpoint in another layout.
    train("--data", text(folder), "--out", out, *SMALL, "--schedule", "constant", "--resume",
          "--steps", "6")
    assert [row["step"] for row in metrics(out)] == [1, 2, 3, 4, 5, 6]


def killed_among_experts(folder):
    more = ["--experts", "4", "--expert-ffn", "16", "--tp", "2", "--sp", "--ep", "2", "--zero"]
    for victim, phase in ((3, "backward"), (2, "save:1")):
        killed_at(folder, 4, victim, phase, *more, program="train_moe")


def stops(folder, name, how, *then, more=()):
    """Stops a job whose steps take longer than mpirun waits. Returns (status, saved, errors)."""
    process = start(folder, name, 2, "--steps", "100000", "--dim", "256", "--heads", "4", "--layers", "4",
                    "--seq", "256", "--batch", "16", "--save-every", "0", *more)
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
    """A signal from a batch queue or a closed terminal does the same; a second one ends the job."""
    for sent in (signal.SIGTERM, signal.SIGHUP):
        done = stops(folder, sent.name, lambda p: p.send_signal(sent))
        assert done[:2] == (130, True), (sent, done)
    # A step takes seconds, so the second signal arrives within one.
    status, saved, _ = stops(folder, "twice", lambda p: p.send_signal(signal.SIGTERM), signal.SIGTERM,
                             more=("--batch", "512", "--micro-batch", "8"))
    assert status != 0 and not saved, (status, saved)


if __name__ == "__main__":
    main([killed, killed_among_experts, interrupted, terminated])
