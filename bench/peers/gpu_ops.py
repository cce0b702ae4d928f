#!/usr/bin/env python3
"""The rows of bench_gpu in PyTorch: the same shapes, timed in the same way.

usage: gpu_ops.py --names FILE [--mode eager|compiled|cudnn] [--json FILE [--resume]]
                  [--device cuda|cpu] [--quick]

FILE is the output of `bench_gpu --json FILE`; its row names give the ops, dtypes and shapes. With
--resume, rows that the file of --json has are not measured again. Rows without a counterpart in a
mode are skipped:
  eager     everything; attention by scaled_dot_product_attention with its FLASH backend (f32: the
            memory-efficient one), AdamW fused
  compiled  the memory-bound ops through torch.compile
  cudnn     attention with the CUDNN backend
--device cpu and --quick only check that the script runs.
"""
import argparse
import math
import re
import sys
import time

try:
    import torch
except ImportError:
    sys.exit("gpu_ops.py needs PyTorch: pip install torch numpy, or name another interpreter with PYTHON=")

import gpu_cases
from row_file import RowFile, read_rows

# As in bench/gpu/gpu_bench.cpp.
RUNS, SAMPLE_SECONDS, WARM_SECONDS = 25, 3e-3, 3
NAME = re.compile(r"(?P<op>[a-z0-9_ ]+?)(?: kv_heads (?P<kv>\d+))?, "
                  r"(?P<dtype>bf16|f32) (?P<sizes>\d+(?: x \d+)*)")
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


class CpuMark:
    """Replaces a CUDA event where there is no GPU."""

    def __init__(self, enable_timing=True):
        self.at = 0.0

    def record(self):
        self.at = time.perf_counter()

    def elapsed_time(self, later):
        return 1e3 * (later.at - self.at)


class Clock:
    def __init__(self, device, quick):
        self.cuda, self.quick = device == "cuda", quick
        self.mark = torch.cuda.Event if self.cuda else CpuMark

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()

    def measure(self, call, samples, calls):
        """Seconds per call of each sample, sorted. The host waits only at the end."""
        marks = [self.mark(enable_timing=True) for _ in range(samples + 1)]
        for i, mark in enumerate(marks):
            for _ in range(calls if i else 0):
                call(self.calls)
                self.calls += 1
            mark.record()
        self.synchronize()
        return sorted(1e-3 * a.elapsed_time(b) / calls for a, b in zip(marks, marks[1:]))

    def time(self, call):
        """Median, p10 and p90 of the seconds per call."""
        self.calls = 0
        self.measure(call, 1, 1 if self.quick else 3)
        estimate = self.measure(call, 1, 1 if self.quick else 5)[0]
        wanted = 1 if self.quick else math.ceil(SAMPLE_SECONDS / max(estimate, 1e-6))
        s = self.measure(call, 3 if self.quick else RUNS, min(max(wanted, 1), 500))
        return s[len(s) // 2], s[len(s) // 10], s[len(s) - 1 - len(s) // 10]

    def warm_up(self, device):
        n = 16 if self.quick else 8192
        a, b = (gpu_cases.uniform((n, n), torch.bfloat16, device) for _ in range(2))
        start = time.perf_counter()
        while True:
            for _ in range(1 if self.quick else 20):
                a @ b
            self.synchronize()
            if self.quick or time.perf_counter() - start > WARM_SECONDS:
                return


class Rows:
    def __init__(self, names, clock, file, options):
        self.names, self.clock, self.file, self.options = names, clock, file, options

    def add(self, *rows):
        """(name, value, unit) of one measurement."""
        for name, value, unit in rows:
            print(f"{name:<60} {value:12.4g} {unit}", flush=True)
        self.file.append([{"name": name, "value": value, "unit": unit} for name, value, unit in rows])

    def timed(self, name, call):
        median, p10, p90 = (1e6 * t for t in self.clock.time(call))
        self.add((name, median, "us"), (name + ": p10", p10, "us"), (name + ": p90", p90, "us"))

    def case(self, name):
        found = NAME.fullmatch(name)
        shape = tuple(int(n) for n in found["sizes"].split(" x "))
        case = gpu_cases.Case(shape, DTYPES[found["dtype"]], self.options.device, self.options.mode)
        case.kv_heads = int(found["kv"]) if found["kv"] else 0
        call = gpu_cases.make(found["op"], case)
        if call is not None:
            self.timed(name, call)

    def all_cases(self):
        warm = False
        for name in self.names:
            if not NAME.fullmatch(name) or name in self.file.names:
                continue
            if not warm and name.startswith("product"):
                self.clock.warm_up(self.options.device)
                warm = True
            try:
                self.case(name)
            except Exception as e:  # an unsupported case leaves a gap in the table
                print(f"{name}: left out: {type(e).__name__}: {str(e)[:300]}", file=sys.stderr)

    def overhead(self):
        """Measured as in bench/gpu/overhead.cpp."""
        chain, runs = (4, 1) if self.options.quick else (256, 101)
        for name, run in gpu_cases.overhead(chain, self.options.device, self.clock.synchronize).items():
            if name + ": issued" not in self.names or name + ": issued" in self.file.names:
                continue
            issued, done = [], []
            for i in range(runs + 2):
                self.clock.synchronize()
                start = run()
                middle = time.perf_counter()
                self.clock.synchronize()
                if i >= 2:
                    issued.append(1e9 * (middle - start) / chain)
                    done.append(1e9 * (time.perf_counter() - start) / chain)
            self.add((name + ": issued", sorted(issued)[runs // 2], "ns/op"),
                     (name + ": done", sorted(done)[runs // 2], "ns/op"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", required=True)
    parser.add_argument("--mode", choices=["eager", "compiled", "cudnn"], default="eager")
    parser.add_argument("--json")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.resume and not options.json:
        parser.error("--resume: needs --json")
    if options.device == "cuda" and not torch.cuda.is_available():
        print("gpu_ops.py: no GPU here", file=sys.stderr)
        sys.exit(77)
    names = [row["name"] for row in read_rows(options.names)]
    if not names:
        parser.error(f"--names: must be a file of bench_gpu with rows, got {options.names}")
    clock = Clock(options.device, options.quick)
    clock.warm_up(options.device)
    rows = Rows(names, clock, RowFile(options.json, options.resume), options)
    rows.all_cases()
    if options.mode == "eager":
        rows.overhead()


if __name__ == "__main__":
    main()
