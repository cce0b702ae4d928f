"""A user's module with train::Trainer: one rank, threads and processes take the same steps; an
interrupted and resumed run has the same bytes; Ctrl-C saves. Needs only train_mlp, from a build or
an installation."""
import os
import pathlib
import shutil
import signal
import subprocess
import time

from support import BIN, checkpoint_bytes, main, refused, run, train
from support import metrics as rows_of
from support_mpi import run_ranks


def losses(out):
    return [row["loss"] for row in rows_of(out)]


def learns_on_any_ranks(folder):
    train("--out", f"{folder}/one", program="train_mlp")
    last = rows_of(f"{folder}/one")[-1]
    assert last["val_accuracy"] > 0.99 and last["accuracy"] > 0.99, last
    train("--out", f"{folder}/three", "--ranks", "3", program="train_mlp")
    train("--out", f"{folder}/zero", "--ranks", "3", "--zero", "--micro-batch", "16", program="train_mlp")
    outs = ["three", "zero"]
    if "WEFT_WITHOUT_MPI" not in os.environ:
        done = run_ranks(2, BIN / "train_mlp", "--out", f"{folder}/two")
        assert done.returncode == 0, done.stderr
        outs.append("two")
    one = losses(f"{folder}/one")
    for out in outs:
        other = losses(f"{folder}/{out}")
        assert len(other) == len(one) == 300
        # Ranks sum in another order, which changes the last bits of f32.
        apart = max(abs(a - b) / b for a, b in zip(other, one))
        assert apart < 2e-5, (out, apart)


def resumes(folder):
    more = ["--schedule", "constant", "--warmup", "0"]
    train("--out", f"{folder}/whole", "--steps", "40", *more, program="train_mlp")
    train("--out", f"{folder}/parts", "--steps", "25", *more, program="train_mlp")
    shutil.copytree(f"{folder}/parts", f"{folder}/joined")
    train("--out", f"{folder}/parts", "--steps", "40", *more, "--resume", program="train_mlp")
    assert losses(f"{folder}/whole") == losses(f"{folder}/parts")
    train("--out", f"{folder}/joined", "--steps", "40", "--resume=true", program="train_mlp")  # the rest by config.toml
    assert losses(f"{folder}/whole") == losses(f"{folder}/joined")
    refused(run("train_mlp", "--out", f"{folder}/joined", "--resume=1"), 2, "--resume: must be true or false, got '1'")
    whole, parts = (checkpoint_bytes(f"{folder}/{out}", 40) for out in ("whole", "parts"))
    assert whole and whole == parts
    again = ["--config", f"{folder}/whole/config.toml", "--out", f"{folder}/again"]
    train(*again, program="train_mlp")
    assert checkpoint_bytes(f"{folder}/again", 40) == whole


def stops_at_ctrl_c(folder):
    out = f"{folder}/long"
    process = subprocess.Popen([BIN / "train_mlp", "--out", out, "--steps", "100000000"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log, deadline = pathlib.Path(out) / "metrics.jsonl", time.time() + 60
    while time.time() < deadline and not (log.exists() and log.stat().st_size > 0):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume goes on from it" in said, (said, errors)
    assert checkpoint_bytes(out, rows_of(out)[-1]["step"])


def wrong_use(folder):
    refused(run("train_mlp", "--out", folder, "--layers", "3"), 2, "unknown flag '--layers'")
    refused(run("train_mlp", "--out", folder, "--tp", "2", "--ranks", "2"), 2,
            "this model cannot be cut over ranks")
    refused(run("train_mlp", "--out", folder, "--batch", "10", "--ranks", "3"), 2,
            "--batch: must be a multiple of dp 3, got 10")
    said = run("train_mlp", "--help").stdout
    assert "Trains a classifier." in said and "--ranks" in said, said


main([learns_on_any_ranks, resumes, stops_at_ctrl_c, wrong_use])
