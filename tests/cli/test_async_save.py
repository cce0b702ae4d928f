"""Checkpoints that are written while training goes on. WEFT_TEST_KILLS=50 makes as many kills."""
import json
import os
import pathlib
import random
import signal
import subprocess
import time

from support import BIN, checkpoint_bytes, main, metrics, refused, run, text, train

MODEL = ["--layers", "2", "--heads", "2", "--dim", "32", "--seq", "32", "--batch", "4", "--threads", "1",
         "--val-fraction", "0.01", "--log-every", "1000", "--schedule", "constant", "--warmup", "2"]
# A checkpoint of this model takes as long as several steps.
SLOW = {"WEFT_TEST_DISK_BYTES_PER_S": "4e6"}
KILLS = int(os.environ.get("WEFT_TEST_KILLS", "4"))


def newest(out):
    """The step that OUT/checkpoints/latest.json names."""
    try:
        return json.loads((pathlib.Path(out) / "checkpoints/latest.json").read_text())["step"]
    except FileNotFoundError:
        return 0


def rows(out):
    log = pathlib.Path(out) / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def killed_and_resumed(folder, name, kills, steps, *layout):
    """Kills at random moments lose no completed checkpoint, and the run ends as an undisturbed one."""
    flags = ["--data", text(folder), *MODEL, *layout, "--save-every", "2", "--eval-every", "4", "--keep", "2",
             "--steps", str(steps)]
    whole, out = f"{folder}/{name}_whole", f"{folder}/{name}"
    train(*flags, "--out", whole, "--async-save", "off")
    moments = random.Random(1)
    command = [str(BIN / "train_gpt"), *flags, "--out", out, "--resume"]
    for i in range(kills):
        before = newest(out)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env={**os.environ, **SLOW})
        # After some steps, which differ each time, and at any point of what is then under way.
        aim = before + moments.randrange(1, 8)
        while rows(out) < min(aim, steps) and process.poll() is None:
            time.sleep(0.001)
        time.sleep(moments.random() * 0.1)
        seen = newest(out)
        process.kill()
        process.wait()
        assert newest(out) >= seen >= before, (i, before, seen, newest(out))
        if newest(out):
            last = run("generate", "--checkpoint", out, "--prompt", "the", "--tokens", "1")
            assert last.returncode == 0, (i, last.stderr)
    train(*command[1:])
    assert metrics(out) == metrics(whole)
    assert checkpoint_bytes(out, steps) == checkpoint_bytes(whole, steps)


def killed_alone(folder):
    killed_and_resumed(folder, "alone", KILLS, 8 + 6 * KILLS)


def killed_with_ranks(folder):
    killed_and_resumed(folder, "ranks", KILLS, 8 + 6 * KILLS, "--ranks", "2", "--zero")


def same_checkpoints(folder):
    """A step changes nothing of a checkpoint that is still being written, for any optimizer state."""
    layouts = ([], ["--ranks", "2", "--zero", "--dtype", "bf16", "--master-weights", "remainder"],
               ["--ranks", "2", "--tp", "2", "--state-dtype", "fp8", "--keep-best", "--eval-every", "1"])
    for i, layout in enumerate(layouts):
        flags = ["--data", text(folder), *MODEL, *layout, "--steps", "6", "--save-every", "1", "--keep", "0"]
        for how in ("on", "off"):
            train(*flags, "--out", f"{folder}/{how}{i}", "--async-save", how,
                  env={"WEFT_TEST_DISK_BYTES_PER_S": "2e7"} if how == "on" else None)
        for step in range(1, 7):
            once, twice = (checkpoint_bytes(f"{folder}/{how}{i}", step) for how in ("on", "off"))
            assert once and once == twice, (layout, step)
        assert metrics(f"{folder}/on{i}") == metrics(f"{folder}/off{i}"), layout


def full_disk(folder):
    """A disk that is full while training goes on: one line, and the last checkpoint stays."""
    for i, layout in enumerate(([], ["--ranks", "2"])):
        flags = ["--data", text(folder), *MODEL, *layout, "--out", f"{folder}/full{i}", "--save-every", "2"]
        train(*flags, "--steps", "2")
        before = checkpoint_bytes(f"{folder}/full{i}", 2)
        done = run("train_gpt", *flags, "--steps", "1000", "--resume",
                   env={**SLOW, "WEFT_TEST_DISK_FULL_AFTER": "200000"})
        if layout:  # which cannot write their last collectives either
            assert done.returncode == 1 and "No space left on device" in done.stderr.splitlines()[-1], done
        else:
            refused(done, 1, "No space left on device")
        assert checkpoint_bytes(f"{folder}/full{i}", 2) == before
        names = [p.name for p in pathlib.Path(folder, f"full{i}/checkpoints").iterdir()]
        assert not any(name.endswith(".tmp") for name in names), names
        train(*flags, "--steps", "4", "--resume")


def stops_with_a_save_under_way(folder):
    """Ctrl-C and a loss that is not finite wait for it; the interrupted run saves its own step too."""
    flags = ["--data", text(folder), *MODEL, "--save-every", "3"]
    done = run("train_gpt", *flags, "--steps", "100", "--out", f"{folder}/nan",
               env={**SLOW, "WEFT_TEST_INJECT_NAN": "5"})
    refused(done, 3, "step 5")
    assert newest(f"{folder}/nan") == 3
    process = subprocess.Popen([BIN / "train_gpt", *flags, "--steps", "100000", "--out", f"{folder}/stopped"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, **SLOW})
    while rows(f"{folder}/stopped") < 4 and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and not errors, errors
    assert newest(f"{folder}/stopped") == metrics(f"{folder}/stopped")[-1]["step"]


if __name__ == "__main__":
    main([killed_alone, killed_with_ranks, same_checkpoints, full_disk, stops_with_a_save_under_way])
