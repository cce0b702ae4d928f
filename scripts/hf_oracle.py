#!/usr/bin/env python3
"""Tiny models of every Hugging Face family that Weft reads, with random weights, as transformers computes them.

usage: hf_oracle.py --write            writes tests/fixtures/hf, which tests/nn/test_hf.cpp compares with
       hf_oracle.py --oracle BUILD     compares larger variants: tied and untied, each rope scaling, shards;
                                       converts each folder to Weft and back and loads it in transformers

Needs transformers and PyTorch; no network. Sizes are odd on purpose: heads that are not dim / heads wide, six
query heads to two key heads, a vocabulary that is no multiple of 8, three layers. Weights are stored in bf16,
and everything is computed from exactly those values in f32.
"""
import argparse
import copy
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests/fixtures/hf"
# At this rate the losses of PyTorch itself in f32 and f64 agree to 3e-7; at 0.01 those of qwen2 differ by 9e-5.
T, VOCAB, GREEDY, STEPS, RATE = 64, 131, 32, 20, 0.003

SIZES = dict(vocab_size=VOCAB, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=6,
             num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5, bos_token_id=None,
             eos_token_id=None, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
LINEAR = dict(rope_type="linear", factor=2.0)

# family: (configuration class, settings of the fixture, variants that --oracle compares too)
FAMILIES = {
    "gpt2": ("GPT2Config", dict(vocab_size=VOCAB, n_embd=24, n_layer=3, n_head=6, n_positions=128, n_inner=40,
                                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None,
                                eos_token_id=None),
             [dict(tie_word_embeddings=False), dict(activation_function="gelu", n_inner=None)]),
    "llama": ("LlamaConfig", dict(SIZES, head_dim=8, rope_theta=5e4, rope_scaling=LLAMA3),
              [dict(rope_scaling=LINEAR), dict(rope_scaling=YARN, tie_word_embeddings=True),
               dict(rope_scaling=None, attention_bias=True)]),
    "mistral": ("MistralConfig", dict(SIZES, head_dim=8, sliding_window=11),
                [dict(sliding_window=None, tie_word_embeddings=True)]),
    "qwen2": ("Qwen2Config", dict(SIZES, hidden_size=36, tie_word_embeddings=True),
              [dict(rope_scaling=YARN, tie_word_embeddings=False),
               dict(use_sliding_window=True, sliding_window=9, max_window_layers=0),
               dict(use_sliding_window=True, sliding_window=9, max_window_layers=1)]),
    "qwen3": ("Qwen3Config", dict(SIZES, head_dim=8, rope_theta=1e6),
              [dict(rope_scaling=YARN), dict(attention_bias=True, tie_word_embeddings=True)]),
    "mixtral": ("MixtralConfig", dict(SIZES, head_dim=8, num_local_experts=5, num_experts_per_tok=2, intermediate_size=16,
                                      sliding_window=None, rope_theta=1e6, tie_word_embeddings=False),
                [dict(sliding_window=13, tie_word_embeddings=True)]),
    "qwen2_moe": ("Qwen2MoeConfig", dict(SIZES, hidden_size=36, num_experts=5, num_experts_per_tok=2, intermediate_size=32,
                                         moe_intermediate_size=12, shared_expert_intermediate_size=20,
                                         mlp_only_layers=[0], norm_topk_prob=False),
                  [dict(norm_topk_prob=True, mlp_only_layers=[]), dict(tie_word_embeddings=True)]),
    "qwen3_moe": ("Qwen3MoeConfig", dict(SIZES, head_dim=8, num_experts=5, num_experts_per_tok=2,
                                         moe_intermediate_size=12, mlp_only_layers=[0], norm_topk_prob=True),
                  [dict(norm_topk_prob=False, mlp_only_layers=[]), dict(rope_scaling=YARN)]),
    "olmoe": ("OlmoeConfig", dict(SIZES, hidden_size=36, intermediate_size=12, num_experts=5, num_experts_per_tok=2,
                                  clip_qkv=1.5),
              [dict(clip_qkv=None, norm_topk_prob=True, tie_word_embeddings=True), dict(rope_scaling=LLAMA3)]),
    "deepseek_v3": ("DeepseekV3Config", dict(SIZES, num_key_value_heads=6, rms_norm_eps=1e-6, q_lora_rank=10,
                                             kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5,
                                             moe_intermediate_size=8, n_shared_experts=2, n_routed_experts=9, n_group=3,
                                             topk_group=2, num_experts_per_tok=3, first_k_dense_replace=1,
                                             rope_scaling=dict(YARN, mscale=1.0, mscale_all_dim=0.7)),
                    [dict(q_lora_rank=None, n_group=1, topk_group=1, tie_word_embeddings=True, rope_scaling=None),
                     dict(norm_topk_prob=False, rope_scaling=dict(YARN, mscale_all_dim=1.0))]),
    "qwen3_next": ("Qwen3NextConfig", dict(SIZES, head_dim=16, partial_rotary_factor=0.25, full_attention_interval=2,
                                           linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6,
                                           linear_value_head_dim=5, linear_conv_kernel_dim=4, num_experts=5,
                                           num_experts_per_tok=2, moe_intermediate_size=12,
                                           shared_expert_intermediate_size=20, mlp_only_layers=[0]),
                   [dict(attention_bias=True, norm_topk_prob=False, mlp_only_layers=[], tie_word_embeddings=True),
                    dict(rope_scaling=YARN, partial_rotary_factor=0.5, full_attention_interval=3)]),
}


def make_model(family, settings, seed):
    """Weights larger than a real start, so that attention is not uniform and every gradient is visible."""
    config = getattr(transformers, FAMILIES[family][0])(**copy.deepcopy(settings))  # transformers 5 adds keys to dictionaries
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    g = torch.Generator().manual_seed(seed)
    # With 1.2 the steps of PyTorch itself move by 0.03 when the weights of qwen3_next move by 1e-7.
    gain = 0.6 if family == "qwen3_next" else 1.2
    with torch.no_grad():
        for name, p in model.named_parameters():
            w = torch.randn(p.shape, generator=g)
            if "norm" in name or "ln_" in name:
                zero_centered = family == "qwen3_next" and "linear_attn" not in name
                w = (1 if name.endswith("weight") and not zero_centered else 0) + 0.3 * w
            elif p.ndim == 1:
                w = 0.2 * w
            else:
                w = w * (0.5 if "embed" in name or "wte" in name or "wpe" in name else gain / math.sqrt(p.shape[-1]))
            p.copy_(w.bfloat16().float())
        for name, bias in model.named_buffers():
            if name.endswith("correction_bias"):
                bias.copy_(0.2 * torch.rand(bias.shape, generator=g))
    return model


def loss_of(model, ids):
    logits = model(ids).logits
    return logits, torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])


def gradients(model):
    """By the names in files: transformers 5 has other names in memory, and all experts of a layer in one parameter."""
    holder = copy.deepcopy(model)
    for held, p in zip(holder.parameters(), model.parameters()):
        held.data = p.grad
    buffers = {name for name, _ in holder.named_buffers()}
    with tempfile.TemporaryDirectory() as folder:
        holder.save_pretrained(folder)
        for file in sorted(pathlib.Path(folder).glob("*.safetensors")):
            yield from ((name, g) for name, g in load_file(file).items() if name not in buffers)


def reference(model, seed):
    """What transformers computes: logits, loss, digests of gradients, greedy tokens, losses of SGD steps."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (1, T), generator=g)
    out = {"ids": ids.int()}
    logits, loss = loss_of(model, ids)
    out["logits"], out["loss"] = logits.detach().contiguous(), loss.detach().view(1)
    loss.backward()
    for name, gradient in gradients(model):
        flat = gradient.double().flatten()
        wave = torch.cos(torch.arange(flat.numel()).double())
        out["grad." + name] = torch.stack([flat.norm(), (flat * wave).sum()])
    text = ids[:, :8]
    with torch.no_grad():
        for _ in range(GREEDY):
            text = torch.cat([text, model(text).logits[:, -1:].argmax(-1)], 1)
    out["greedy"] = text[0, 8:].int()
    losses, sgd = [], torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        sgd.zero_grad()
        step = loss_of(model, ids)[1]
        step.backward()
        sgd.step()
        losses.append(step.detach())
    out["sgd"] = torch.stack(losses)
    return out


def write_folder(folder, family, settings, seed, shard="50GB"):
    model = make_model(family, settings, seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model.config.dtype = torch.bfloat16
    model.bfloat16().save_pretrained(folder, max_shard_size=shard)
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()), sort_keys=True) + "\n")
    # Loaded again, since bfloat16() has rounded the rotary frequencies too.
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    save_file(reference(model.eval(), seed + 1), folder / "reference.safetensors")
    for file in folder.iterdir():
        file.chmod(0o644)


def settings_of(family):
    """Of the fixture first, then of its variants."""
    _, settings, variants = FAMILIES[family]
    return [settings] + [dict(settings, **v) for v in variants]


def weights_of(folder):
    """What transformers holds after loading the folder, tied tensors included."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    return {name: t.detach() for name, t in model.state_dict().items()}


def round_trip(build, folder, family, work):
    """Hugging Face to Weft and back; every tensor and the family must be as before."""
    convert = str(build / "bin/convert")
    run, back = work / "run", work / "back"
    subprocess.run([convert, "--from", folder, "--to", run], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([convert, "--from", run, "--to", back, "--family", family, "--file-mb", "1"], check=True,
                   stdout=subprocess.DEVNULL)
    before, after = weights_of(folder), weights_of(back)
    if before.keys() != after.keys() or any(not torch.equal(before[n], after[n]) for n in before):
        sys.exit(f"{family}: the exported folder differs")
    return len(before)


def oracle(build):
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        for family in FAMILIES:
            for i, settings in enumerate(settings_of(family)):
                folder = work / "models" / f"{family}_{i}"
                write_folder(folder, family, settings, 100 + i, "20KB" if i else "50GB")
                tensors = round_trip(build, folder, family, work / f"{family}_{i}")
                print(f"{family} {i}: {tensors} tensors are equal after export", flush=True)
        done = subprocess.run([str(build / "bin/tests_nn"), "--source-file=*/nn/test_hf.cpp"],
                              env={**os.environ, "WEFT_HF_MODELS": str(work / "models")})
        sys.exit(done.returncode)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--oracle", type=pathlib.Path, metavar="BUILD")
    options = parser.parse_args()
    if options.write:
        for i, family in enumerate(FAMILIES):
            write_folder(FIXTURES / family, family, settings_of(family)[0], 10 * i)
            print(family, sum(f.stat().st_size for f in (FIXTURES / family).iterdir()), "bytes")
    if options.oracle:
        oracle(options.oracle.resolve())


if __name__ == "__main__":
    main()
