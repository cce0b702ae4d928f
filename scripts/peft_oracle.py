#!/usr/bin/env python3
"""LoRA adapters of the tiny models in tests/fixtures/hf, as PEFT computes and writes them.

usage: peft_oracle.py --write            writes tests/fixtures/peft, which tests/nn/test_peft.cpp compares with
       peft_oracle.py --oracle BUILD     more adapters; loads what `convert` writes in PEFT, tensor by tensor

Needs transformers, PEFT and PyTorch; no network. Models are those of scripts/hf_oracle.py. Every matrix of an
adapter is random, since PEFT starts with b = 0, which changes nothing.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import tempfile

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS, FIXTURES = ROOT / "tests/fixtures/hf", ROOT / "tests/fixtures/peft"
T = 16

# name: (model, settings of peft.LoraConfig, whether it is a fixture)
ADAPTERS = {
    "llama": ("llama", dict(r=3, lora_alpha=7, target_modules=["q_proj", "v_proj", "down_proj", "gate_proj"]), True),
    "gpt2": ("gpt2", dict(r=2, lora_alpha=5, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True,
                          use_rslora=True), True),
    "deepseek": ("deepseek_v3", dict(r=2, lora_alpha=4, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa",
                                                                        "kv_b_proj", "o_proj"]), True),
    "qwen3_next": ("qwen3_next", dict(r=2, target_modules=["in_proj_qkvz", "in_proj_ba", "q_proj", "out_proj",
                                                           "shared_expert_gate"]), False),
    "llama_all": ("llama", dict(r=4, target_modules="all-linear"), False),
    "llama_head": ("llama", dict(r=4, target_modules=["lm_head", "o_proj"]), False),
    "qwen2": ("qwen2", dict(r=1, lora_alpha=3, target_modules=r".*\.(0|2)\.self_attn\.(q|k)_proj"), False),
    "mixtral": ("mixtral", dict(r=2, target_modules=["k_proj", "o_proj"]), False),
}


def base_model(name):
    return transformers.AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32,
                                                             attn_implementation="eager").eval()


def adapted(name, seed):
    model, settings, _ = ADAPTERS[name]
    config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
    wrapped = peft.get_peft_model(base_model(model), config).eval()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, p in wrapped.named_parameters():
            if "lora_" in key:
                p.copy_((0.3 * torch.randn(p.shape, generator=g)).bfloat16().float())
    return wrapped


def write(folder, name, seed):
    """The adapter, logits of it, and the weights that it changes, after the merge."""
    wrapped = adapted(name, seed)
    wrapped.peft_config["default"].base_model_name_or_path = str((MODELS / ADAPTERS[name][0]).relative_to(ROOT))
    wrapped.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    ids = torch.randint(131, (1, T), generator=torch.Generator().manual_seed(seed))
    out = {"ids": ids.int(), "logits": wrapped(ids).logits.detach().contiguous()}
    before = base_model(ADAPTERS[name][0]).state_dict()
    merged = wrapped.merge_and_unload().state_dict()
    for key, w in merged.items():
        if not torch.equal(w, before[key]):
            flat = w.double().flatten()
            wave = torch.cos(torch.arange(flat.numel()).double())
            out["merged." + key] = torch.stack([flat.norm(), (flat * wave).sum()])
    save_file(out, folder / "reference.safetensors")


def run(build, program, *words):
    subprocess.run([f"{build}/bin/{program}", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def oracle(build):
    """Merged folders equal PEFT's merge to 1e-6; adapters that Weft trained load in PEFT, tensor by tensor."""
    for seed, name in enumerate(ADAPTERS):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            write(folder / "peft", name, seed)
            model = MODELS / ADAPTERS[name][0]
            run(build, "convert", "--from", model, "--adapter", folder / "peft", "--to", folder / "merged")
            wanted = adapted(name, seed).merge_and_unload().state_dict()
            got = transformers.AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32).state_dict()
            # Fixtures are in bf16, and so is what is written.
            apart = max(((got[k].float() - w).abs() / (w.abs() + 1e-3)).max().item() for k, w in wanted.items())
            assert apart <= 2 ** -8, (name, apart)
            print(f"{name}: merged weights within {apart:.1e}, half a step of bf16")
    for name, targets in (("llama", "q,v,down"), ("gpt2", "qkv,down"), ("qwen3_next", ""), ("deepseek_v3", "")):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "text").write_bytes(bytes(range(100)) * 40)
            run(build, "train_gpt", "--init", MODELS / name, "--data", folder / "text", "--seq", 128, "--steps", 3,
                "--lr", 0.1, "--val-fraction", 0, "--lora-rank", 3, "--lora-targets", targets, "--out", folder / "run")
            run(build, "convert", "--from", folder / "run", "--to", folder / "peft")
            written = load_file(folder / "peft/adapter_model.safetensors")
            wrapped = peft.PeftModel.from_pretrained(base_model(name), folder / "peft")
            held = peft.get_peft_model_state_dict(wrapped)
            assert held.keys() == written.keys(), (name, held.keys() ^ written.keys())
            assert all(torch.equal(held[k], w) for k, w in written.items()), name
            assert any((w != 0).any() for k, w in written.items() if "lora_B" in k), name
            print(f"{name}: {len(written)} tensors of a trained adapter equal in PEFT, "
                  f"targets {json.loads((folder / 'peft/adapter_config.json').read_text())['target_modules']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--oracle", metavar="BUILD")
    args = parser.parse_args()
    if args.write:
        for seed, (name, (_, _, fixture)) in enumerate(ADAPTERS.items()):
            if fixture:
                shutil.rmtree(FIXTURES / name, ignore_errors=True)
                write(FIXTURES / name, name, seed)
    if args.oracle:
        oracle(args.oracle)


if __name__ == "__main__":
    main()
