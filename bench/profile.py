#!/usr/bin/env python3
"""Profiles a training step: samples bench_step with perf and sums the samples by kind.

usage: bench/profile.py [--model NAME] [--threads N] [--steps N] [--build DIR]

Counts only the samples of the timed steps: those at the end of the process, over the duration of the
steps. Needs Linux perf and permission to use it (root, or kernel.perf_event_paranoid at most 1).
"""
import argparse
import collections
import json
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The first match of "library symbol" counts. oneDNN's kernels are generated and have no symbols.
KINDS = [
    ("waiting for other threads", r"ThreadPool|__atomic_spin|__atomic_wait|sched_yield"),
    ("products by oneDNN", r"^jit |libdnnl|library_product|omp_"),
    ("products of attention", r"block_product|product_tile<|product_columns<"),
    ("in-tree products with weights", r"panel_|pack_|packed_in_|product_|_product|gemm_bias|SmallGemm"),
    ("attention beside its products", r"transpose|softmax_step|probabilities|scores_bwd|row_dot|"
                                      r"row_scale|Forward<|BackwardPass|attention"),
    ("layer norm, with the residual sum", r"Norm<|norm"),
    ("GELU", r"gelu"),
    ("loss", r"CrossEntropy|cross_entropy"),
    ("AdamW and clipping", r"Optimizer|adam|grad_squares|sum_squares"),
    ("gradients of biases", r"reduce|column_sums"),
    ("copies and fills, biases before products", r"memmove|memcpy|memset|copy|move_values|fill|walk"),
    ("embedding", r"index_add|index_select|gather"),
    ("the system", r"kernel"),
    ("everything else", r""),
]


def samples(file):
    """(seconds, CPU seconds, "library symbol") of every sample."""
    fields = "time,period,ip,sym,dso"
    script = ["perf", "script", "-i", file, "-F", fields]
    for line in subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines():
        time, period, _, rest = line.split(None, 3)
        symbol, _, library = rest.rpartition(" (")
        library = library.rstrip(")").split("/")[-1]
        if library.startswith(("[JIT]", "perf-", "//anon", "anon")):
            library, symbol = "jit", ""
        symbol = re.sub(r"\+0x[0-9a-f]+$", "", symbol)
        yield float(time.rstrip(":")), int(period) * 1e-9, f"{library} {symbol}"


def kind_of(name):
    return next(kind for kind, pattern in KINDS if re.search(pattern, name))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--build", default=ROOT / "build" / "release")
    options = parser.parse_args()
    bench = [pathlib.Path(options.build) / "bin" / "bench_step", "--model", options.model]
    bench += ["--threads", options.threads, "--steps", options.steps, "--warmup", 3]
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/perf.data"
        record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "997", "-o", file, *bench]
        done = subprocess.run([str(word) for word in record], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        steps = json.loads(done.stdout.splitlines()[-1])["step_ms"]
        taken = list(samples(file))
    wall = sum(steps) * 1e-3
    start = taken[-1][0] - wall
    share = collections.Counter()
    others = collections.Counter()
    for time, seconds, name in taken:
        if time < start:
            continue
        kind = kind_of(name)
        share[kind] += seconds
        if kind == KINDS[-1][0]:
            others[name] += seconds
    total = sum(share.values())
    busy = 100 * total / (wall * options.threads)
    print(f"{options.model}: {1e3 * wall / len(steps):.1f} ms a step, processors {busy:.0f} % busy")
    for kind, seconds in share.most_common():
        print(f"{100 * seconds / total:5.1f} %  {kind}")
    for name, seconds in others.most_common(4):
        print(f"          {100 * seconds / total:.1f} %  {name[:100]}")


if __name__ == "__main__":
    main()
