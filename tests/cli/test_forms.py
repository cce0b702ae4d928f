"""Positions, norms, activations and biases by flags: training, resuming, text, export, checkpoints and config files
from before these flags, and layouts."""
import json
import pathlib
import re

from support import SMALL, checkpoint_bytes, main, metrics, refused, rewrite, run, text, train

OWN = ["--positions", "none", "--norm", "layer", "--activation", "geglu", "--mlp-bias", "on", "--arch", "llama"]
SETTINGS = ("positions", "norm", "activation", "mlp_bias")


def base(folder, out, *args, steps=20):
    return ["--data", text(folder, 20000), "--out", f"{folder}/{out}", "--steps", steps, *SMALL, *args]


def trains_resumes_and_writes(folder):
    for i, flags in enumerate((OWN, ["--activation", "relu2", "--positions", "rope"])):
        flags = [*flags, "--schedule", "constant", "--warmup", "0", "--lr", "3e-3", "--recompute", "selective"]
        train(*base(folder, f"whole{i}", *flags))
        train(*base(folder, f"parts{i}", *flags, steps=10))
        train(*base(folder, f"parts{i}", *flags, "--resume"))
        once, twice = (checkpoint_bytes(f"{folder}/{out}{i}", 20) for out in ("whole", "parts"))
        assert once and once == twice, "weights or optimizer states differ"
        losses = [row["loss"] for row in metrics(f"{folder}/whole{i}")]
        assert losses[-1] < 0.75 * losses[0], losses
        # More tokens than the longest sequence.
        done = run("generate", "--checkpoint", f"{folder}/whole{i}", "--prompt", "the cat", "--tokens", "60")
        assert done.returncode == 0 and done.stdout.startswith("the cat"), done.stderr
    model = json.loads(pathlib.Path(folder, "whole0/checkpoints/step_00000020/state.json").read_text())["model"]
    assert [model[key] for key in SETTINGS] == ["none", "layer", "geglu", True], model
    other = run("train_gpt", *base(folder, "whole1", "--activation", "relu", "--positions", "rope", "--resume"))
    refused(other, 2, "another model", 'activation "relu2" (this run: "relu")')


def other_programs_get_only_what_they_hold(folder):
    train(*base(folder, "own", *OWN, steps=2))
    for to in ("hf", "own.gguf"):
        refused(run("convert", "--from", f"{folder}/own", "--to", f"{folder}/{to}"), 2,
                "hf: llama folders have rotary positions, RMSNorm, and SwiGLU without biases; got positions none")
        assert not pathlib.Path(folder, to).exists()
    train(*base(folder, "relu", "--activation", "relu", "--dropout", "0.1", steps=2))
    done = run("convert", "--from", f"{folder}/relu", "--to", f"{folder}/relu-hf")
    assert done.returncode == 0, done.stderr
    assert json.loads(pathlib.Path(folder, "relu-hf/config.json").read_text())["activation_function"] == "relu"
    said = ["--prompt", "the cat", "--tokens", "20", "--temperature", "0"]
    here, there = run("generate", "--checkpoint", f"{folder}/relu", *said), run("generate", "--model", f"{folder}/relu-hf", *said)
    assert here.returncode == 0 and there.stdout == here.stdout, there


def older_runs_go_on(folder):
    for arch in ("gpt2", "llama"):
        flags = ["--arch", arch, "--gelu", "erf", "--schedule", "constant", "--warmup", "0"]  # llama has no GELU
        train(*base(folder, arch, *flags, steps=6))
        train(*base(folder, f"{arch}-old", *flags, steps=3))
        old = pathlib.Path(folder, f"{arch}-old")
        config = (old / "config.toml").read_text()
        without = re.sub(r"(?m)^(positions|norm|activation|mlp-bias) = .*\n", "", config)
        assert without.count("\n") == config.count("\n") - 4
        (old / "config.toml").write_text(without)
        rewrite(old, 3, lambda state: [state["model"].pop(key) for key in SETTINGS])
        train("--out", old, "--resume", "--steps", "6")
        assert checkpoint_bytes(old, 6) == checkpoint_bytes(f"{folder}/{arch}", 6)


def flags_beside_init_count(folder):
    model_of = lambda out: json.loads(pathlib.Path(folder, out, "checkpoints/step_00000002/state.json").read_text())["model"]
    for form, other in (("erf", "tanh"), ("tanh", "erf")):
        train(*base(folder, form, "--gelu", form, steps=2))
        train(*base(folder, f"{form}-then", "--init", f"{folder}/{form}", "--gelu", other, steps=2))
        assert [model_of(out)["gelu"] for out in (form, f"{form}-then")] == [form, other]
        assert model_of(f"{form}-then")["activation"] == f"gelu_{other}"
    refused(run("train_gpt", *base(folder, "other", "--init", f"{folder}/erf", "--arch", "llama")), 2, "weights")
    done = run("convert", "--from", f"{folder}/erf", "--to", f"{folder}/foo", "--family", "foo")
    refused(done, 2, "hf: the family must be one of gpt2, ", "got foo")


def layouts_agree(folder):
    flags = [*OWN, "--dropout", "0", "--batch", "4"]
    train(*base(folder, "one", *flags, steps=5))
    for out, more in (("tp", ["--ranks", "2", "--tp", "2", "--sp"]), ("zero", ["--ranks", "2", "--fsdp"])):
        train(*base(folder, out, *flags, *more, steps=5))
        for a, b in zip(metrics(f"{folder}/one"), metrics(f"{folder}/{out}")):
            assert abs(a["loss"] - b["loss"]) < 1e-4 * a["loss"], (a, b)


def wrong_words(folder):
    refused(run("train_gpt", *base(folder, "run", "--activation", "mish")), 2,
            "--activation: must be one of auto, gelu_tanh, gelu_erf, swiglu, ", "got 'mish'")
    refused(run("train_gpt", *base(folder, "run", "--positions", "alibi")), 2,
            "--positions: must be one of auto, learned, rope, none, got 'alibi'")
    refused(run("train_gpt", *base(folder, "run", "--gelu", "erf", "--activation", "relu")), 2,
            "gpt: gelu erf needs activation auto or gelu_erf, got relu")


main([trains_resumes_and_writes, other_programs_get_only_what_they_hold, older_runs_go_on, flags_beside_init_count,
      layouts_agree, wrong_words])
