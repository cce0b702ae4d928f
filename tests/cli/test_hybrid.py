"""A model whose layers are of two kinds, as a user trains it: first losses, resume, text, errors."""
from support import SMALL, checkpoint_bytes, main, metrics, refused, run, text, train

MODEL = ["--arch", "llama", "--pattern", "da"]
STEPS = 30
# Of the first steps with these flags. They change only with the model, its start or its data.
FIRST_LOSSES = [5.54074, 5.39245, 5.18994, 5.03392, 4.89706]


def base(folder, out, *args, steps=STEPS):
    return ["--data", text(folder), "--out", f"{folder}/{out}", "--steps", steps, *SMALL, *args]


def learns(folder):
    train(*base(folder, "run", *MODEL, "--lr", "3e-3"))
    losses = [row["loss"] for row in metrics(f"{folder}/run")]
    for got, want in zip(losses, FIRST_LOSSES):
        assert abs(got - want) <= 1e-4 * want, losses[:len(FIRST_LOSSES)]
    assert losses[-1] < 0.75 * losses[0], losses


def resumes(folder):
    flat = [*MODEL, "--schedule", "constant", "--warmup", "5", "--recompute", "full"]
    train(*base(folder, "whole", *flat, steps=10))
    train(*base(folder, "parts", *flat, steps=5))
    train(*base(folder, "parts", *flat, "--resume", steps=10))
    once, twice = (checkpoint_bytes(f"{folder}/{out}", 10) for out in ("whole", "parts"))
    assert once and once == twice, "weights or optimizer states differ"
    other = run("train_gpt", *base(folder, "parts", "--arch", "llama", "--pattern", "dd", "--resume"))
    refused(other, 2, "--resume", "pattern")


def writes_text(folder):
    train(*base(folder, "run", *MODEL, steps=5))
    done = run("generate", "--checkpoint", f"{folder}/run", "--prompt", "the cat", "--tokens", "20")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the cat"), done.stdout


def wrong_pattern(folder):
    done = run("train_gpt", *base(folder, "run", "--pattern", "dxa"))
    refused(done, 2, "--pattern: must consist of a (attention) and d (gated delta net), got 'dxa'")


main([learns, resumes, writes_text, wrong_pattern])
