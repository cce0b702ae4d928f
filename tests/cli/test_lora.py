#!/usr/bin/env python3
"""Adapters: trained on a model, used beside it, as PEFT folders, merged into it, and refused."""
import json
import pathlib
import shutil

from support import main, refused, run, text, train

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
                         (["--init", LLAMA, "--lora-rank", 2, "--fsdp", "--ranks", 2], ["--lora-rank", "--zero"])):
        refused(run("train_gpt", *data, *words), 2, *parts)
    refused(run("generate", "--model", LLAMA, "--adapter", folder), 2, "--adapter", folder)
    refused(run("generate", "--model", LLAMA.parent / "gpt2", "--adapter", PEFT), 2, "gpt2")


if __name__ == "__main__":
    main([from_run_to_peft_and_into_the_model, a_resumed_run_needs_the_same_model, the_plan_of_an_adapter, wrong_use])
