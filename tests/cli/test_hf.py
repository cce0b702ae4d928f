#!/usr/bin/env python3
"""Folders of Hugging Face: text from them, training from them, and back."""
import json
import pathlib
import shutil

from support import SMALL, main, metrics, refused, run, text, train

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures/hf"


def weights(folder):
    """Names and bytes of a single .safetensors file."""
    data = (pathlib.Path(folder) / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header.pop("__metadata__", None)
    return {n: (e["dtype"], e["shape"], data[end + e["data_offsets"][0]:end + e["data_offsets"][1]])
            for n, e in header.items()}


def there_and_back(folder):
    for family in sorted(p.name for p in FIXTURES.iterdir()):
        here, there = f"{folder}/{family}_run", f"{folder}/{family}_back"
        train("--from", FIXTURES / family, "--to", here, program="convert")
        train("--from", here, "--to", there, "--family", family, program="convert")
        assert weights(there) == weights(FIXTURES / family), family
        config = json.loads((pathlib.Path(there) / "config.json").read_text())
        assert config["model_type"] == family and config["torch_dtype"] == "bfloat16", config


def the_same_text(folder):
    train("--from", FIXTURES / "llama", "--to", f"{folder}/run", program="convert")
    greedy = ["--prompt", "go", "--tokens", 20, "--temperature", 0]
    out = [train(flag, where, *greedy, program="generate").stdout
           for flag, where in (("--model", FIXTURES / "llama"), ("--checkpoint", f"{folder}/run"))]
    assert out[0] == out[1] and out[0].startswith("go"), out


def training_goes_on(folder):
    """From either folder the same steps, on one rank and on two that share the layers."""
    data = ["--data", text(folder), "--seq", 32, "--batch", 4, "--steps", 3, "--log-every", 1000, "--eval-every", 3]
    train("--from", FIXTURES / "qwen2", "--to", f"{folder}/run", program="convert")
    losses = []
    for i, more in enumerate((["--init", FIXTURES / "qwen2"], ["--init", f"{folder}/run"],
                              ["--init", FIXTURES / "qwen2", "--ranks", 2, "--tp", 2])):
        out = f"{folder}/out{i}"
        train(*data, *more, "--out", out)
        losses.append([row["loss"] for row in metrics(out)])
    assert losses[0] == losses[1], losses
    assert all(abs(a - b) < 1e-4 for a, b in zip(losses[0], losses[2])), losses
    train("--out", f"{folder}/out0", "--resume", "--steps", 5)
    refused(run("train_gpt", "--out", f"{folder}/out0", "--resume", "--init", FIXTURES / "qwen2"), 2, "--init")
    train("--from", f"{folder}/out0", "--to", f"{folder}/trained", program="convert")
    config = json.loads((pathlib.Path(folder) / "trained/config.json").read_text())
    assert config["model_type"] == "qwen2" and config["max_position_embeddings"] == 32, config


def a_folder_without_a_tokenizer(folder):
    """Bytes are no tokens of a model that has more of them."""
    bare = pathlib.Path(folder) / "bare"
    train("--data", text(folder), "--vocab", "300", "--out", f"{folder}/t.json", program="train_tokenizer")
    train("--data", text(folder), "--tokenizer", f"{folder}/t.json", "--out", f"{folder}/run", "--steps", 1, *SMALL)
    train("--from", f"{folder}/run", "--to", bare, program="convert")
    (bare / "tokenizer.json").unlink()
    ask = ["--model", bare, "--data", text(folder)]
    refused(run("evaluate", *ask), 2, "--model: '", "holds no tokenizer that can be read; name one with --tokenizer")
    train(*ask, "--tokenizer", f"{folder}/t.json", program="evaluate")


def gguf_files(folder):
    """From a Hugging Face folder and from a run of bytes; info reads what convert writes."""
    path, run_folder = f"{folder}/llama.gguf", f"{folder}/bytes"
    train("--from", FIXTURES / "llama", "--to", path, "--gguf-type", "q8_0", program="convert")
    data = pathlib.Path(path).read_bytes()
    assert data[:8] == b"GGUF\3\0\0\0" and b"no_vocab" in data, data[:99]
    shown = run("info", path).stdout
    for part in ('"general.architecture": "llama"', '"llama.context_length": 128', "of q8_0", "of f32", "of f16"):
        assert (part in shown) == (part != "of q8_0"), (part, shown)  # no row is a multiple of 32
    pathlib.Path(path).write_bytes(data.replace(b"no_vocab", b"\x9b\xffvoca\x7f\x1b"))
    shown = run("info", path).stdout
    assert r'"\x9b\xffvoca\x7f\u001b' in shown and shown.isascii(), shown
    pathlib.Path(path).write_bytes(data)
    for i, bad in enumerate((data[:200], data[:24] + b"\xff" * 8 + data[32:], b"GGUF" + b"\xff" * 40)):
        (pathlib.Path(folder) / f"bad{i}.gguf").write_bytes(bad)
        refused(run("info", f"{folder}/bad{i}.gguf"), 2, "gguf", f"bad{i}.gguf")
    train("--arch", "llama", "--layers", 1, "--heads", 2, "--dim", 32, "--seq", 16, "--batch", 2, "--steps", 1,
          "--data", text(folder), "--out", run_folder)
    train("--from", run_folder, "--to", f"{folder}/bytes.gguf", program="convert")
    assert "\u0120".encode() in pathlib.Path(f"{folder}/bytes.gguf").read_bytes()
    refused(run("convert", "--from", FIXTURES / "llama", "--to", path), 2, "--to", "exists")
    refused(run("convert", "--from", FIXTURES / "llama", "--to", f"{folder}/z", "--gguf-type", "f32"), 2, "--gguf-type")
    refused(run("convert", "--from", FIXTURES / "llama", "--to", f"{folder}/z.gguf", "--file-mb", 3), 2, "--file-mb: needs")
    refused(run("convert", "--from", FIXTURES / "llama", "--to", f"{folder}/z.gguf", "--gguf-type", "q4"), 2,
            "--gguf-type", "f32, f16, bf16, q8_0")
    refused(run("convert", "--from", FIXTURES / "qwen3_next", "--to", f"{folder}/z.gguf"), 2, "qwen3_next", "qwen3_moe")
    refused(run("convert", "--from", FIXTURES / "deepseek_v3", "--to", f"{folder}/z.gguf"), 2, "mscale_all_dim")


def wrong_folders(folder):
    bad = pathlib.Path(folder) / "bad"
    shutil.copytree(FIXTURES / "llama", bad)
    config = json.loads((bad / "config.json").read_text())
    config["hidden_act"] = "relu"
    (bad / "config.json").write_text(json.dumps(config))
    refused(run("generate", "--model", bad), 2, "config.json: llama: hidden_act", "silu")
    refused(run("train_gpt", "--data", text(folder), "--init", bad, "--out", f"{folder}/x"), 2, "hidden_act")
    (bad / "config.json").write_bytes(b"{")
    refused(run("generate", "--model", bad), 2, "config.json")
    (bad / "config.json").unlink()
    refused(run("generate", "--model", bad), 2, "config.json")
    refused(run("convert", "--from", bad, "--to", f"{folder}/y"), 2, "config.json")
    refused(run("convert", "--from", FIXTURES / "llama", "--to", bad), 2, "--to")
    refused(run("generate", "--model", FIXTURES / "llama", "--checkpoint", bad), 2, "--model")
    damaged = pathlib.Path(folder) / "damaged"
    shutil.copytree(FIXTURES / "llama", damaged)
    whole = (damaged / "model.safetensors").read_bytes()
    (damaged / "model.safetensors").write_bytes(whole[:-2])
    refused(run("generate", "--model", damaged), 2, "model.safetensors")


main([there_and_back, the_same_text, training_goes_on, a_folder_without_a_tokenizer, gguf_files, wrong_folders])
