#!/usr/bin/env python3
"""Adapters: trained on a model, used beside it, as PEFT folders, merged into it, and refused."""
import json
import pathlib
import shutil

from support import main, metrics, refused, run, text, train

LLAMA = pathlib.Path(__file__).parent.parent / "fixtures/hf/llama"
PEFT = pathlib.Path(__file__).parent.parent / "fixtures/peft/llama"


def from_run_to_peft_and_into_the_model(folder):
    done = train("--init", LLAMA, "--data", text(folder), "--seq", 32, "--batch", 4, "--steps", 3, "--lr", 0.1,
                 "--lora-rank", 2, "--lora-targets", "q,v", "--out", f"{folder}/run")
    assert "672 parameters of adapters" in " ".join(done.stdout.split()), done.stdout
    train("--from", f"{folder}/run", "--to", f"{folder}/peft", program="convert")
    config = json.loads((pathlib.Path(folder) / "peft/adapter_config.json").read_text())
    assert config["target_modules"] == ["q_proj", "v_proj"] and config["lora_alpha"] == 4, config
    assert config["base_model_name_or_path"] == str(LLAMA), config
    train("--from", LLAMA, "--adapter", f"{folder}/peft", "--to", f"{folder}/merged", program="convert")
    greedy = ["--prompt", "go", "--tokens", 20, "--temperature", 0]
    out = [train("--model", LLAMA, *more, *greedy, program="generate").stdout
           for more in ([], ["--adapter", f"{folder}/run"], ["--adapter", f"{folder}/peft"])]
    assert out[0] != out[1] == out[2], out
    assert train("--model", f"{folder}/merged", *greedy, program="generate").stdout != out[0]
    info = train(f"{folder}/run", program="info").stdout
    assert "lora_rank" in info and str(LLAMA) in info, info
    score = ["--data", text(folder, 100), "--seq", 32]
    losses = [train("--model", LLAMA, *more, *score, program="evaluate").stdout
              for more in ([], ["--adapter", PEFT])]
    assert losses[0] != losses[1], losses


def a_run_goes_on_from_an_adapter(folder):
    """The loss of the first step is that of the model with the adapter in it, whose settings need not be said."""
    data = ["--data", text(folder), "--seq", 32, "--batch", 4, "--steps", 1, "--eval-every", 1]
    train("--from", LLAMA, "--adapter", PEFT, "--to", f"{folder}/merged", program="convert")
    train("--init", LLAMA, *data, "--out", f"{folder}/plain")
    train("--init", f"{folder}/merged", *data, "--out", f"{folder}/whole")
    train("--init", LLAMA, *data, "--adapter", PEFT, "--out", f"{folder}/on")
    plain, whole, on = [metrics(f"{folder}/{out}")[0]["loss"] for out in ("plain", "whole", "on")]
    assert abs(whole - on) < min(0.05 * abs(plain - on), 3e-3), (plain, whole, on)  # the merged weights are bf16
    config = (pathlib.Path(folder) / "on/config.toml").read_text()
    adapter = json.loads((PEFT / "adapter_config.json").read_text())
    assert f"lora-rank = {adapter['r']}\n" in config and f"lora-alpha = {adapter['lora_alpha']}" in config, config
    train("--out", f"{folder}/on", "--resume", "--steps", 2)
    plan = train("--init", LLAMA, "--seq", 8, "--adapter", PEFT, program="plan").stdout
    assert "peak memory" in plan, plan
    refused(run("train_gpt", "--out", f"{folder}/on", "--resume", "--steps", 3, "--adapter", PEFT), 2,
            "--adapter", "resumed")
    refused(run("train_gpt", "--init", LLAMA, *data, "--adapter", PEFT, "--lora-rank", 1), 2, "--lora-rank",
            str(adapter["r"]))
    refused(run("train_gpt", "--init", LLAMA.parent / "gpt2", *data, "--adapter", PEFT), 2, "gpt2")
    refused(run("train_gpt", *data, "--adapter", PEFT), 2, "--adapter", "--lora-rank")


def a_resumed_run_needs_the_same_model(folder):
    base = shutil.copytree(LLAMA, f"{folder}/base")
    train("--init", base, "--data", text(folder), "--seq", 32, "--batch", 4, "--steps", 1, "--lora-rank", 2, "--out",
          f"{folder}/run")
    weights = pathlib.Path(base) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\x80?")
    refused(run("train_gpt", "--out", f"{folder}/run", "--resume", "--steps", 2), 2, "--resume", base, "trained on")


def the_plan_of_an_adapter(folder):
    """Less than that of the whole model, which has gradients and moments of all weights."""
    del folder
    peaks = []
    for more in ([], ["--lora-rank", 2]):
        out = train("--init", LLAMA, "--seq", 8, "--batch", 1, *more, program="plan").stdout
        peaks.append(float(next(line for line in out.splitlines() if line.startswith("optimizer")).split()[4]))
    assert peaks[1] < peaks[0] / 4, peaks


def wrong_use(folder):
    data = ["--data", text(folder), "--seq", 32, "--steps", 1, "--out", f"{folder}/out"]
    for words, parts in ((["--lora-rank", 2], ["--lora-rank", "--init"]),
                         (["--init", LLAMA, "--lora-targets", "q"], ["--lora-targets", "lora-rank"]),
                         (["--init", LLAMA, "--lora-rank", 2, "--lora-targets", "x"], ["\"x\"", "q, up, v"]),
                         (["--init", LLAMA, "--lora-rank", 2, "--lora-targets", "head", "--lora-dropout", 0.1],
                          ["--lora-dropout", "must be 0 with an adapter of the head, got 0.1"]),
                         (["--init", LLAMA, "--lora-rank", 2, "--fsdp", "--ranks", 2], ["--lora-rank", "--zero"])):
        refused(run("train_gpt", *data, *words), 2, *parts)
    refused(run("generate", "--model", LLAMA, "--adapter", folder), 2, "--adapter", folder)
    refused(run("generate", "--model", LLAMA.parent / "gpt2", "--adapter", PEFT), 2, "gpt2")


if __name__ == "__main__":
    main([from_run_to_peft_and_into_the_model, a_run_goes_on_from_an_adapter, a_resumed_run_needs_the_same_model, the_plan_of_an_adapter, wrong_use])
