#!/usr/bin/env python3
"""How far from f32 training ends in bf16 and with each FP8 recipe: 500 steps on the quickstart's text.

usage: bench/precision_losses.py [--data FILE] [--build DIR] [--out DIR] [--models small,experts]
                                 [--seeds 1,2] [--jobs N]

Every run starts from the same weights and sees the same data as the f32 run of its seed. A run that
--out has already is not made again. Prints tables in Markdown: mean loss of the last 50 steps.
On a Xeon of 2 cores "small" takes 14 processor minutes a seed, "experts" 7.
"""
import argparse
import concurrent.futures
import json
import pathlib
import shutil
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS, LAST = 500, 50
MODELS = {
    "small": "--preset small --batch 2 --seq 128",
    "experts": "--preset tiny --arch llama --layers 2 --ffn 352 --experts 4 --topk 2 "
               "--expert-ffn 176 --mtp 1 --batch 16 --seq 64",
}
# The control rounds the sums of f32 products in another order: what any other rounding changes.
ROWS = {
    "f32": "--dtype f32",
    "f32, other order of sums": "--dtype f32 --deterministic",
    "bf16": "--dtype bf16",
    "fp8 current": "--dtype fp8 --fp8-recipe current",
    "fp8 current-pow2": "--dtype fp8 --fp8-recipe current-pow2",
    "fp8 delayed": "--dtype fp8 --fp8-recipe delayed",
    "fp8 block": "--dtype fp8 --fp8-recipe block",
}


def command(model, row, seed):
    flags = f"{MODELS[model]} {ROWS[row]} --seed {seed} --steps {STEPS} --threads 1"
    return f"{flags} --val-fraction 0 --log-every {STEPS}".split()


def metrics_file(args, model, row, seed):
    return args.out / f"{model}-{row.replace(', ', '-').replace(' ', '-')}-{seed}.jsonl"


def train(args, model, row, seed):
    kept = metrics_file(args, model, row, seed)
    if kept.exists():
        return
    folder = kept.with_suffix(".run")
    shutil.rmtree(folder, ignore_errors=True)
    program = [args.build / "bin/train_gpt", "--data", args.data, "--out", folder]
    done = subprocess.run(program + command(model, row, seed), stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"precision_losses: {model}, {row}, seed {seed}: {done.stderr.strip()}")
    (folder / "metrics.jsonl").rename(kept)
    shutil.rmtree(folder)
    print(f"{model}, {row}, seed {seed}: {loss_of(kept):.4f}", flush=True)


def loss_of(file):
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    if len(rows) != STEPS:
        raise SystemExit(f"precision_losses: {file} must have {STEPS} steps, got {len(rows)}")
    return statistics.mean(row["loss"] for row in rows[-LAST:])


def table(args, model):
    """Losses of all seeds, differences from f32 in per cent, their mean and its standard error."""
    losses = {row: [loss_of(metrics_file(args, model, row, seed)) for seed in args.seeds]
              for row in ROWS}
    print(f"\n{model}: `train_gpt {MODELS[model]} --steps {STEPS}`\n")
    seeds = " | ".join(f"seed {seed} | from f32" for seed in args.seeds)
    several = len(args.seeds) > 1
    more = " | mean | standard error" if several else ""
    print(f"| | {seeds}{more} |\n|{' --- |' * (2 * len(args.seeds) + 1 + 2 * several)}")
    for row, own in losses.items():
        apart = [100 * (a / b - 1) for a, b in zip(own, losses["f32"])]
        each = " | ".join(f"{a:.4f} | {d:+.2f} %" for a, d in zip(own, apart))
        if several:
            error = statistics.stdev(apart) / len(apart)**0.5
            each += f" | {statistics.mean(apart):+.2f} % | {error:.2f} %"
        print(f"| {row} | {each} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "build/data/austen.txt")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/precision"))
    parser.add_argument("--models", type=lambda s: s.split(","), default=list(MODELS))
    parser.add_argument("--seeds", type=lambda s: [int(n) for n in s.split(",")], default=[1, 2])
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    for model in args.models:
        if model not in MODELS:
            parser.error(f"--models: must be of {', '.join(MODELS)}, got '{model}'")
    if not args.data.is_file():
        parser.error(f"--data: cannot read {args.data}; scripts/quickstart.sh makes it")
    args.out.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = [pool.submit(train, args, model, row, seed)
                for seed in args.seeds for model in args.models for row in ROWS]
        for run in runs:
            run.result()
    for model in args.models:
        table(args, model)


if __name__ == "__main__":
    main()
