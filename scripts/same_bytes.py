#!/usr/bin/env python3
"""Trains ten configurations at two commits: losses, norms, weights and optimizer state must have the same
bytes. Then the newer trainer reads the config.toml and the checkpoint of the older one.
usage: scripts/same_bytes.py BASE [NEW]     NEW: default HEAD; uncommitted changes are ignored"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = 30
ALL = ["--layers", "2", "--heads", "4", "--dim", "32", "--seq", "32", "--batch", "4", "--seed", "3",
       "--dropout", "0.1", "--log-every", "1000", "--steps", str(STEPS), "--threads", "2",
       "--schedule", "constant"]
RUNS = {  # name: program and flags
    "dense": ["train_gpt", "--arch", "gpt2"],
    "moe": ["train_moe", "--z-loss", "0.001", "--aux", "aux", "--mtp", "0"],
    "mtp": ["train_gpt", "--arch", "llama", "--mtp", "2", "--micro-batch", "2"],
    "delta": ["train_gpt", "--arch", "llama", "--pattern", "da"],
    "mla": ["train_gpt", "--arch", "llama", "--attention", "mla", "--v-head", "24"],
    "bf16": ["train_gpt", "--arch", "llama", "--dtype", "bf16"],
    "zero": ["train_gpt", "--arch", "gpt2", "--ranks", "2", "--dp", "2", "--zero"],
    "tp": ["train_gpt", "--arch", "llama", "--ranks", "2", "--tp", "2", "--sp", "--kv-heads", "2"],
    "ep": ["train_moe", "--ranks", "4", "--dp", "2", "--tp", "2", "--sp", "--ep", "2", "--etp", "2"],
    "recompute": ["train_moe", "--recompute", "full", "--optimizer", "sgd", "--lr", "0.01"],
}
# Keys that differ between equal runs, and those that describe the run's own folder.
TIMES = {"tokens_per_s", "step_ms", "joules", "tokens_per_joule", "system_allocs", "peak_bytes", "live_bytes", "mfu",
         "peak_tflops"}


def build(commit):
    """Builds the trainer's programs at a commit, once, and returns their folder."""
    name = subprocess.check_output(["git", "rev-parse", "--short=12", f"{commit}^{{commit}}"], cwd=ROOT,
                                   text=True).strip()
    tree = ROOT / "build" / "same_bytes" / name
    if not (tree / "CMakeLists.txt").exists():
        subprocess.check_call(["git", "worktree", "prune"], cwd=ROOT)
        subprocess.check_call(["git", "worktree", "add", "--detach", "--force", tree, name], cwd=ROOT,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    flags = ["-DWEFT_TESTS=OFF", "-DWEFT_BENCH=OFF", "-DWEFT_EXAMPLES=ON", "-DWEFT_CUDA=OFF"]
    for command in (["cmake", "--preset", "release", *flags],
                    ["cmake", "--build", "--preset", "release", "--target", "train_gpt", "train_moe"]):
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"same_bytes: {name}: {' '.join(command[:3])} failed:\n{done.stdout[-3000:]}")
    return tree / "build" / "release" / "bin"


def train(programs, program, *args):
    done = subprocess.run([programs / program, *map(str, args)], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{program} {' '.join(map(str, args))}: status {done.returncode}: "
                             f"{done.stderr.strip()}")


def text(path):
    state, words = 1, "the cat sat on a mat and saw that dog who ran to it for some food".split()
    out = []
    for _ in range(6000):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(words[(state >> 16) % len(words)])
    path.write_text(" ".join(out) + "\n")


def difference(a, b):
    """"" if two runs have the same rows and the same checkpoint, else the first difference."""
    rows = [[json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()] for out in (a, b)]
    if len(rows[0]) != len(rows[1]):
        return f"{len(rows[0])} rows of metrics, {len(rows[1])}"
    for x, y in zip(*rows):
        for key in x.keys() - TIMES:  # a newer trainer may add keys
            if key not in y or x[key] != y[key]:
                return f"step {x['step']}: {key} {x[key]}, {y.get(key)}"
    files = [{p.relative_to(out): p.read_bytes() for p in sorted(out.glob("checkpoints/*/*.safetensors"))}
             for out in (a, b)]
    if not files[0]:
        return "no checkpoint"
    if files[0].keys() != files[1].keys():
        return f"files {sorted(map(str, files[0]))}, {sorted(map(str, files[1]))}"
    return "".join(f"{name} differs" for name in files[0] if files[0][name] != files[1][name])


def compare(old, new, folder, name):
    program, *flags = RUNS[name]
    data = folder / "words.txt"
    outs = {which: folder / f"{name}-{which}" for which in ("old", "new", "config", "resumed")}
    common = ["--data", data, *ALL, *flags]
    train(old, program, *common, "--out", outs["old"])
    train(new, program, *common, "--out", outs["new"])
    if problem := difference(outs["old"], outs["new"]):
        return problem
    train(new, program, "--config", outs["old"] / "config.toml", "--out", outs["config"])
    if problem := difference(outs["old"], outs["config"]):
        return f"from the older config.toml: {problem}"
    shutil.copytree(outs["old"], outs["resumed"])
    more = [str(STEPS + 3) if flag == str(STEPS) else flag for flag in common]
    train(new, program, *more, "--out", outs["resumed"], "--resume")
    train(old, program, *more, "--out", outs["old"], "--resume")
    problem = difference(outs["old"], outs["resumed"])
    return f"resumed from the older checkpoint: {problem}" if problem else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("new", nargs="?", default="HEAD")
    args = parser.parse_args()
    old, new = build(args.base), build(args.new)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        text(folder / "words.txt")
        for name in RUNS:
            try:
                problem = compare(old, new, folder, name)
            except AssertionError as e:
                problem = str(e)
            failed += problem != ""
            print(f"{'FAILED' if problem else 'same  '} {name:10} {problem}", flush=True)
    print(f"{len(RUNS) - failed} of {len(RUNS)} configurations have the same bytes")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
