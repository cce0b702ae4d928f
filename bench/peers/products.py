#!/usr/bin/env python3
"""The products of the models' steps in Weft, oneDNN and MKL's sgemm as PyTorch calls it, as a table.

usage: bench/peers/products.py [--models NAME,...] [--rounds N] [--threads N] [--build DIR] [--cap avx2]

Needs PyTorch and gcc; MKL uses its kernels for Intel's processors on others too, as run.py's tuned PyTorch. For
each model `bench_ops --products` runs first, then PyTorch multiplies the same shapes in the same layouts, by turns
for N rounds; the best run of each counts. --cap avx2 restricts all three libraries to AVX2. What is attainable in a step
with the fastest of them, run.py --turns tells.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import report
import tuned_torch
from row_file import read_rows

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CAPS = {"": {}, "avx2": {"WEFT_ISA": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
                         "ATEN_CPU_CAPABILITY": "avx2"}}
ROW = re.compile(r"(?P<name>.*: .* (?P<kind>forward|input gradient|weight gradient)) "
                 r"(?P<m>\d+) x (?P<n>\d+) x (?P<k>\d+), (?P<engine>weft|onednn|peak|count)")
LIBRARIES = "weft", "onednn", "mkl"
SECONDS_EACH = 0.3


def mkl_rate(torch, kind, m, n, k):
    a = torch.randn(k, m).t() if kind == "weight gradient" else torch.randn(m, k)
    b = torch.randn(n, k).t() if kind == "forward" else torch.randn(k, n)
    out, best, begin = torch.empty(m, n), float("inf"), time.perf_counter()
    turn = 0
    while turn < 4 or time.perf_counter() - begin < SECONDS_EACH:
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        if turn > 0:
            best = min(best, time.perf_counter() - start)
        turn += 1
    return 2e-9 * m * n * k / best


def rows_of(program, *args):
    """What a program of bench/ measures, by name."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.jsonl"
        env = {name: value for name, value in os.environ.items() if name not in tuned_torch.NAMES}
        subprocess.run([program, *map(str, args), "--json", path], env=env, check=True, stdout=subprocess.DEVNULL)
        return {row["name"]: row["value"] for row in read_rows(path)}


def mkl_rate_in_order(model):
    from product_sequence import ProductSequence, gpt
    step = ProductSequence(gpt.MODELS[model])
    best, begin, turn = float("inf"), time.perf_counter(), 0
    while turn < 3 or (turn < 20 and time.perf_counter() - begin < 2):
        seconds = step.timed()
        if turn > 0:
            best = min(best, seconds)
        turn += 1
    return step.gflop / best


def products_of(model, torch, options):
    """Prints a row for each product and two for all of a step: as the sum of these, and in the order of a step."""
    found, in_order = {}, dict.fromkeys(LIBRARIES, 0)
    for _ in range(options.rounds):
        rows = rows_of(options.build / "bin/bench_ops", "--products", model, "--threads", options.threads)
        for name, value in rows.items():
            if match := ROW.fullmatch(name):
                rate = found.setdefault(match.group("name", "kind", "m", "n", "k"), {})
                rate[match["engine"]] = max(rate.get(match["engine"], 0), value)
            else:
                library = name.removeprefix(f"{model}: in the order of a step, ")
                in_order[library] = max(in_order[library], value)
        for (_, kind, *shape), rate in found.items():
            rate["mkl"] = max(rate.get("mkl", 0), mkl_rate(torch, kind, *map(int, shape)))
        in_order["mkl"] = max(in_order["mkl"], mkl_rate_in_order(model))
    taken, work = dict.fromkeys(LIBRARIES, 0), 0
    for (name, _, *shape), rate in found.items():
        m, n, k = map(int, shape)
        print(f"| {name} {m} x {n} x {k} | {rate['weft']:.1f} | {rate['onednn']:.1f} | {rate['mkl']:.1f} | "
              f"{rate['weft'] / rate['peak']:.2f} |", flush=True)
        flop = 2e-9 * m * n * k * rate["count"]
        work += flop
        for library in taken:
            taken[library] += flop / rate[library]
    print(f"| {model}: all of a step | " + " | ".join(f"{work / taken[library]:.1f}" for library in LIBRARIES) + " | |")
    print(f"| {model}: in the order of a step | " + " | ".join(f"{in_order[library]:.1f}" for library in LIBRARIES) + " | |",
          flush=True)


def add_options(parser):
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--cap", choices=CAPS, default="")


def choose_environment(options):
    """Restarts this program, if it must, so that PyTorch is tuned and keeps to the instructions that --cap allows, as do
    the programs that it starts. Libraries read these settings when they are loaded."""
    wanted = {**CAPS[options.cap], **tuned_torch.environment(options.build, report.machine(ROOT)["cpu"])}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="tiny,small,124m-b4-t256,124m-b1-t1024,124m-b4-t64")
    add_options(parser)
    options = parser.parse_args()
    if unknown := [model for model in options.models.split(",") if model not in report.SPEED_GOALS]:
        parser.error(f"--models: must be of {', '.join(report.SPEED_GOALS)}, got '{unknown[0]}'")
    choose_environment(options)
    import torch
    torch.set_num_threads(options.threads)
    print("| Product (GFLOP/s) | Weft | oneDNN | MKL | Weft, share of the peak |")
    print("| --- | --- | --- | --- | --- |")
    for model in options.models.split(","):
        products_of(model, torch, options)


if __name__ == "__main__":
    main()
