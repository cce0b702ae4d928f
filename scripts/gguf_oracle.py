#!/usr/bin/env python3
"""GGUF files that `convert` writes, compared with the gguf package and with llama.cpp.

usage: gguf_oracle.py --write            writes tests/fixtures/gguf.json, which tests/nn/test_gguf.cpp compares with
       gguf_oracle.py --oracle BUILD     reads every file with the package: names, shapes, values, q8_0 blocks,
                                         tokenizers; with llama_cpp_py_sync installed, llama.cpp computes 32 greedy
                                         tokens and logits from each, and the ids of texts

--write needs numpy, gguf and safetensors; --oracle needs transformers too. Names come from the package's own table.
"""
import argparse
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unicodedata

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests/fixtures"
ARCHITECTURES = {"gpt2": "gpt2", "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2",
                 "qwen3": "qwen3", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "olmoe": "olmoe",
                 "deepseek_v3": "deepseek2"}
TYPES = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16,
         "bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0}
# What llama.cpp assumes of these families; the fixtures in tests/fixtures/hf differ.
VARIANTS = {"qwen2_moe": dict(mlp_only_layers=[]), "qwen3_moe": dict(mlp_only_layers=[]),
            "olmoe": dict(clip_qkv=None, num_key_value_heads=6)}
# Beside those of hf_oracle.py.
MORE = {"deepseek_v3": [dict(rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32,
                                               mscale=1.0, mscale_all_dim=1.0)),
                        dict(rope_scaling=None, norm_topk_prob=False)]}


def turned(w, heads):
    """The rows of each head: of its two halves in turn."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def expected_tensors(folder):
    """{name: values in f32} of a GGUF file, and the architecture."""
    config = json.loads((folder / "config.json").read_text())
    family = config["model_type"]
    arch = ARCHITECTURES[family]
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    names = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[arch], layers)
    out, experts = {}, {}
    weights = load_file(folder / "model.safetensors")
    for name, w in weights.items():
        w = w.float().numpy()
        if family == "gpt2" and re.search(r"c_(attn|proj|fc)\.weight$", name):
            w = w.T
        if arch == "llama" and (m := re.search(r"self_attn\.([qk])_proj", name)):
            w = turned(w, config["num_attention_heads" if m[1] == "q" else "num_key_value_heads"])
        if m := re.fullmatch(r"(model\.layers\.\d+\.\w+\.experts)\.(\d+)\.(\w+)\.weight", name):
            stacked = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.get(m[3], m[3])
            stem = f"{m[1].replace('block_sparse_moe', 'mlp')}.{stacked}"
            experts.setdefault(stem, {})[int(m[2])] = w
            continue
        if name.endswith("kv_b_proj.weight"):
            nope = config["qk_nope_head_dim"]
            w = w.reshape(config["num_attention_heads"], nope + config["v_head_dim"], -1)
            for part, values in (("k_b", w[:, :nope].swapaxes(1, 2)), ("v_b", w[:, nope:])):
                out[names.get_name(name.replace("kv_b", part), try_suffixes=(".weight",))] = values
            continue
        if name.endswith("shared_expert_gate.weight"):
            w = w.reshape(-1)
        if name == "lm_head.weight" and config.get("tie_word_embeddings", family == "gpt2"):
            continue
        if name.endswith("e_score_correction_bias"):
            name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        out[names.get_name(name, try_suffixes=(".weight", ".bias"))] = w
    for stem, by_index in experts.items():
        w = np.stack([by_index[i] for i in range(len(by_index))])
        out[names.get_name(stem, try_suffixes=(".weight",)) + ".weight"] = w
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        import transformers
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
        c = transformers.AutoConfig.from_pretrained(folder)
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](c, "cpu")
        dim = config["head_dim"]
        plain = 1 / c.rope_theta ** (torch.arange(0, dim, 2).double() / dim)
        out["rope_freqs.weight"] = (plain / scaled.double()).float().numpy()
    return out, arch


def type_of(name, w, wanted):
    """As llama.cpp's converter decides."""
    if w.ndim == 1 or "_norm." in name or "ffn_gate_inp" in name or name.startswith("position_embd"):
        return "f32"
    return "f16" if wanted == "q8_0" and w.shape[-1] % 32 else wanted


def bytes_of(w, kind):
    w = np.ascontiguousarray(w, np.float32)
    return gguf.quants.quantize(w, TYPES[kind]).tobytes()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def write():
    out = {}
    for family in ("gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3"):
        tensors, arch = expected_tensors(FIXTURES / "hf" / family)
        wanted = {"gpt2": "f32", "llama": "bf16", "qwen3": "f16"}.get(family, "q8_0")
        rows = {}
        for name, w in sorted(tensors.items()):
            kind = type_of(name, w, wanted)
            # Frequencies are computed, so their last bit may differ.
            rows[name] = [list(w.shape), kind, 0 if name == "rope_freqs.weight" else crc32c(bytes_of(w, kind))]
        out[family] = {"architecture": arch, "type": wanted, "tensors": rows}
    values = (np.arange(96, dtype=np.float32) - 40.5) ** 3 / 999
    values[32:64] = 0
    values[64:96] = np.float32(1e-6) * np.arange(32)
    blocks = {"values": values.tolist(), "bytes": list(bytes_of(values, "q8_0"))}
    (FIXTURES / "gguf.json").write_text(json.dumps({"families": out, "q8_0": blocks}, separators=(",", ":")) + "\n")


def compare_file(path, folder, wanted):
    reader = gguf.GGUFReader(path)
    tensors, arch = expected_tensors(folder)
    fields = {k: f.contents() for k, f in reader.fields.items()}
    assert fields["general.architecture"] == arch, fields
    assert {t.name for t in reader.tensors} == tensors.keys(), {t.name for t in reader.tensors} ^ tensors.keys()
    for t in reader.tensors:
        w = tensors[t.name]
        kind = type_of(t.name, w, wanted)
        assert t.tensor_type == TYPES[kind] and list(reversed(t.shape)) == list(w.shape), (t.name, t.shape, w.shape)
        if t.name == "rope_freqs.weight":
            assert np.allclose(t.data, w, rtol=1e-6), t.name
            continue
        assert t.data.tobytes() == bytes_of(w, kind), t.name
        values = gguf.quants.dequantize(t.data, t.tensor_type).reshape(w.shape)
        assert np.abs(values - w).max() <= np.abs(w).max() * {"f32": 0, "q8_0": 1 / 250}.get(kind, 2**-8), t.name
    return fields, len(tensors)


@functools.cache
def llama_cpp():
    """The class of models, or None; LLAMA_CPP_LIB may name another library with llama.cpp's functions."""
    try:
        from llama_cpp_py_sync import Llama, _cffi_bindings
    except ImportError:
        return None
    ffi, lib = _cffi_bindings.get_ffi(), _cffi_bindings.get_lib()
    Llama.quiet = ffi.callback("void(enum ggml_log_level, const char *, void *)", lambda *_: None)
    lib.llama_log_set(Llama.quiet, ffi.NULL)
    return Llama


def greedy(Llama, path, reference):
    """The greedy tokens, and the largest difference of logits, after the first 8 tokens."""
    os.environ.setdefault("LLAMA_FLASH_ATTENTION", "0")
    model = Llama(str(path), n_ctx=128, n_threads=1, type_k="f32", type_v="f32", flash_attn_type=0)
    tokens, vocab = reference["ids"][0, :8].tolist(), reference["logits"].shape[-1]
    past, out, worst = model._eval_tokens(tokens, 0), [], 0
    for i in range(32):
        raw = model._lib.llama_get_logits_ith(model._ctx, -1)
        logits = np.frombuffer(model._ffi.buffer(raw, 4 * vocab), np.float32)
        if i == 0:
            worst = float(np.abs(logits - reference["logits"][0, 7].numpy()).max())
        out.append(int(logits.argmax()))
        past = model._eval_tokens(out[-1:], past)
    model.close()
    return out, worst


def convert(build, folder, to, kind="f32"):
    done = subprocess.run([build / "bin/convert", "--from", folder, "--to", to, "--gguf-type", kind], check=True,
                          stdout=subprocess.PIPE, text=True)
    return "".join(line + "\n" for line in done.stdout.splitlines() if line.startswith("warning"))


def models(build, work, Llama, families):
    import hf_oracle
    for family in families:
        for i, settings in enumerate([{}] + hf_oracle.FAMILIES[family][2] + MORE.get(family, [])):
            settings = hf_oracle.FAMILIES[family][1] | settings | VARIANTS.get(family, {})
            folder = work / f"{family}-{i}"
            hf_oracle.write_folder(folder, family, settings, 7 + i)
            reference = load_file(folder / "reference.safetensors")
            for kind in TYPES:
                path = work / f"{family}-{i}-{kind}.gguf"
                done = subprocess.run([build / "bin/convert", "--from", folder, "--to", path, "--gguf-type", kind],
                                      capture_output=True, text=True)
                if done.returncode:
                    print(f"{family} {i}: refused: {done.stderr.strip()}")
                    break
                fields, count = compare_file(path, folder, kind)
                line = f"{family} {i} {kind}: {count} tensors equal"
                if Llama and kind == "f32":
                    tokens, worst = greedy(Llama, path, reference)
                    steps = 32 if fields[f"{fields['general.architecture']}.context_length"] > 40 else 3
                    same = tokens[:steps] == reference["greedy"][:steps].tolist()
                    line += f"; llama.cpp: logits within {worst:.1e}, greedy tokens {'equal' if same else 'DIFFER'}"
                    if not same or worst > (2e-3 if family == "gpt2" else 1e-4):  # its GELU is a table of f16
                        sys.exit(line)
                print(line)


def like_sentencepiece(source, work):
    """{name: tokenizer.json} of characters: of small.model as transformers converts it, with a space before the text,
    with none, and cut into words; and with a list of merges that training gave."""
    from types import SimpleNamespace

    import tokenizer_oracle
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    converted = json.loads(tokenizer_oracle.converted(SimpleNamespace(files=source), "small.model",
                                                      work / "converted.json").read_text())
    mark = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    trained.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split("\n", "isolated"),
                                                     pre_tokenizers.Metaspace(prepend_scheme="never")])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=special, show_progress=False)
    trained.train([str(p) for p in sorted((ROOT / "docs").glob("*.md"))], trainer)
    trained.pre_tokenizer, trained.normalizer = None, normalizers.Replace(" ", "\u2581")
    trained = json.loads(trained.to_str())
    trained["added_tokens"] = trained["added_tokens"][:3]
    prefixed = {**trained, "normalizer": converted["normalizer"]}
    return {"sentencepiece.json": converted, "no-space": {**converted, "normalizer": mark},
            "metaspace": {**converted, "normalizer": None, "pre_tokenizer": metaspace},
            "trained": trained, "trained-space": prefixed}


def tokenizers(build, work, Llama):
    """The files of tests/fixtures/tokenizers with a model; llama.cpp must give the ids of their libraries."""
    import hf_oracle
    import tokenizer_oracle
    from tokenizers import Tokenizer
    source = FIXTURES / "tokenizers"
    expected = json.loads((source / "expected.json").read_text())
    plain = json.loads((source / "gpt2.json").read_text())
    plain["pre_tokenizer"]["add_prefix_space"] = False  # llama.cpp has no such byte-level model
    llama3 = json.loads((source / "qwen.json").read_text())
    split = llama3["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    split["Regex"] = split["Regex"].replace(r"|\p{N}|", r"|\p{N}{1,3}|")
    llama3["normalizer"] = None
    files = {"gpt2": ("tokenizer.json", json.dumps(plain)), "llama3": ("tokenizer.json", json.dumps(llama3)),
             "qwen": ("tokenizer.json", (source / "qwen.json").read_text()),
             "tekken": ("tekken.json", (source / "tekken.json").read_text()),
             "sentencepiece": ("tokenizer.model", (source / "small.model").read_bytes())}
    files |= {name: ("tokenizer.json", json.dumps(content)) for name, content in
              like_sentencepiece(source, work).items()}
    references = {"tekken": expected["tekken.json"], "sentencepiece": expected["small.model"]}
    for name, (file, content) in files.items():
        folder, path = work / f"tokenizer-{name}", work / f"tokenizer-{name}.gguf"
        pairs = references.get(name)
        if not pairs:
            t = Tokenizer.from_str(content)
            texts = [text for text, _ in expected["qwen.json"]]
            if '"byte_fallback": true' in json.dumps(json.loads(content)["model"]):
                texts += tokenizer_oracle.hard_texts([], False)
            pairs = [[text, t.encode(text, add_special_tokens=False).ids] for text in texts]
        if name == "qwen":  # llama.cpp does not normalize
            pairs = [p for p in pairs if unicodedata.is_normalized("NFC", p[0])]
        vocab = max(max(ids, default=0) for _, ids in pairs) + 700
        hf_oracle.write_folder(folder, "llama", hf_oracle.FAMILIES["llama"][1] | dict(vocab_size=vocab), 3)
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        warned = convert(build, folder, path)
        fields = {k: f.contents() for k, f in gguf.GGUFReader(path).fields.items()}
        tokens = fields["tokenizer.ggml.tokens"]
        assert len(tokens) == len(fields["tokenizer.ggml.token_type"]) == vocab, len(tokens)
        line = f"tokenizer {name}: {vocab} tokens, pre {fields.get('tokenizer.ggml.pre', '-')}"
        if Llama:
            model = Llama(str(path), n_ctx=32, n_threads=1)
            wrong = [(text, ids, got) for text, ids in pairs
                     if (got := model.tokenize(text, add_special=False, parse_special=file.endswith(".json"))) != ids]
            line += f"; llama.cpp: {len(pairs) - len(wrong)} of {len(pairs)} texts alike"
            for text, ids, got in wrong[:5]:
                line += f"\n  {text!r}: {ids} there {got}"
        print(line + (f"\n  {warned.strip()}" if warned else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--tokenizers", action="store_true", help="with --oracle: only these")
    parser.add_argument("--only", nargs="*", choices=ARCHITECTURES, help="with --oracle: these families")
    parser.add_argument("--oracle", metavar="BUILD", type=pathlib.Path)
    args = parser.parse_args()
    if args.write:
        write()
    elif args.oracle:
        with tempfile.TemporaryDirectory() as name:
            if not args.tokenizers:
                models(args.oracle, pathlib.Path(name), llama_cpp(), args.only or ARCHITECTURES)
            tokenizers(args.oracle, pathlib.Path(name), llama_cpp())
    else:
        parser.error("--write or --oracle")


if __name__ == "__main__":
    main()
