"""Trains models with gated delta nets and with latent attention: first losses, resume, generated
text, errors."""
import pathlib

from support import SMALL, checkpoint_bytes, main, metrics, refused, run, text, train

MODEL = ["--arch", "llama", "--pattern", "da"]
STEPS = 30
LATENT = ["--arch", "llama", "--attention", "mla", "--q-lora", "24"]
# The first losses with these flags. They depend on the model, its initialisation and its data.
LATENT_FIRST_LOSSES = [5.54373, 5.33384, 5.15814, 5.04079, 4.92868]
FIRST_LOSSES = [5.54074, 5.39245, 5.18994, 5.03392, 4.89706]


def base(folder, out, *args, steps=STEPS):
    return ["--data", text(folder, 20000), "--out", f"{folder}/{out}", "--steps", steps, *SMALL, *args]


def learns(folder):
    for out, model, first in (("hybrid", MODEL, FIRST_LOSSES),
                              ("latent", LATENT, LATENT_FIRST_LOSSES)):
        train(*base(folder, out, *model, "--lr", "3e-3"))
        losses = [row["loss"] for row in metrics(f"{folder}/{out}")]
        for got, want in zip(losses, first):
            assert abs(got - want) <= 1e-4 * want, losses[:len(first)]
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
    # An explicit default gives the same model.
    train(*base(folder, "parts", *flat, "--delta-conv", "4", "--resume", steps=11))


def writes_text(folder):
    # More tokens than the longest sequence: the cache is emptied once.
    for out, model in (("hybrid", MODEL), ("latent", LATENT)):
        train(*base(folder, out, *model, "--mtp", "1", steps=5))
        go_on = ["--checkpoint", f"{folder}/{out}", "--prompt", "the cat", "--tokens", "60"]
        done = run("generate", *go_on)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("the cat"), done.stdout
    greedy = [*go_on[:-1], "20", "--temperature", "0"]
    plain, drafted = run("generate", *greedy), run("generate", *greedy, "--speculative")
    assert drafted.returncode == 0 and drafted.stdout == plain.stdout, drafted


def sizes_of_the_layers(folder):
    sizes = {"delta_key_heads": 1, "delta_value_heads": 3, "delta_key_dim": 5, "delta_value_dim": 7,
             "delta_conv": 3}
    flags = [part for name, n in sizes.items() for part in ("--" + name.replace("_", "-"), n)]
    train(*base(folder, "a", *MODEL, *flags, steps=5))
    config = pathlib.Path(folder, "a/config.toml").read_text()
    for name, n in sizes.items():
        assert f"\n{name.replace('_', '-')} = {n}\n" in config, config
    # config.toml contains all settings; without the sizes it is another model.
    train("--config", f"{folder}/a/config.toml", "--out", f"{folder}/b")
    once, twice = (checkpoint_bytes(f"{folder}/{out}", 5) for out in "ab")
    assert once and once == twice, "the config file does not reproduce the run"
    refused(run("train_gpt", *base(folder, "a", *MODEL, "--resume", steps=6)), 2, "another model",
            "delta_key_heads 1 (this run: 2)", "delta_conv 3 (this run: 4)")
    done = run("generate", "--checkpoint", f"{folder}/a", "--prompt", "the cat", "--tokens", "8")
    assert done.returncode == 0 and done.stdout.startswith("the cat"), done.stderr


def wrong_use(folder):
    for flags, said in ((["--delta-conv", "9", "--pattern", "d"], "conv must be in [2, 8], got 9"),
                        (["--delta-key-dim", "-1"], "--delta-key-dim: must be at least 0, got -1"),
                        (["--delta-key-dim", "8"], "need a pattern with d"),
                        (["--delta-value-heads", "3", "--pattern", "d"],
                         "value_heads 3 must be a multiple of key_heads 2")):
        refused(run("train_gpt", *base(folder, "run", *flags)), 2, said)
    done = run("train_gpt", *base(folder, "run", "--pattern", "dxa"))
    refused(done, 2, "pattern must consist of a (attention), w (attention in a window) and d (gated delta net), got \"dxa\"")
    train(*base(folder, "windows", "--pattern", "aw", "--window", "8", "--steps", "1"))
    done = run("train_gpt", *base(folder, "run", "--attention", "gqa"))
    refused(done, 2, "--attention: must be one of mha, mla, got 'gqa'")
    done = run("train_gpt", *base(folder, "run", "--attention", "mla"))
    refused(done, 2, "gpt: attention mla needs rotary positions, got learned")
    done = run("train_gpt", *base(folder, "run", "--kv-lora", "-1"))
    refused(done, 2, "--kv-lora: must be at least 0, got -1")


main([learns, resumes, writes_text, sizes_of_the_layers, wrong_use])
