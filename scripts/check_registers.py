#!/usr/bin/env python3
"""Compiles the CUDA kernels and lists their registers and spills in docs/registers.md.

usage: check_registers.py           writes docs/registers.md
       check_registers.py --check   fails when a kernel on the hot list spills, or when the table has
                                    other kernels than the sources

Needs nvcc; without it, --check says so and passes. A template's row holds the most of its instances.
"""
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "registers.md"
ARCHITECTURES = ["sm_80", "sm_90a"]
# A training step spends its time in these.
HOT = re.compile(r"^(map_dense|norm_|softmax|cross_entropy|rope|swiglu|attention|adam|grad_squares|"
                 r"reduce_|dropout)")
ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


def nvcc():
    return (os.environ.get("CUDACXX") or shutil.which("nvcc")
            or next((p for p in ["/usr/local/cuda/bin/nvcc"] if os.path.exists(p)), None))


def compile_one(compiler, include, path, architecture):
    """[(mangled kernel, registers, bytes spilled)]"""
    command = [compiler, "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-DWEFT_WITH_CUDA=1",
               f"-I{include}", f"-arch={architecture}", "-Xptxas", "-v", "-cubin", "-o", "/dev/null",
               str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"registers: {path.name} does not compile for {architecture}:\n{done.stderr}")
    rows, kernel, spilled = [], None, 0
    for line in done.stderr.splitlines():
        if m := ENTRY.search(line):
            kernel, spilled = m[1], 0
        elif m := SPILL.search(line):
            spilled = int(m[1]) + int(m[2])
        elif (m := USED.search(line)) and kernel:
            rows.append((kernel, int(m[1]), spilled))
            kernel = None
    return rows


def measure(compiler):
    """{(file, kernel): {architecture: (instances, most registers, most bytes spilled)}}"""
    table = collections.defaultdict(dict)
    with tempfile.TemporaryDirectory() as include:
        (pathlib.Path(include) / "weft").symlink_to(ROOT)
        jobs = [(path, a) for path in sorted(ROOT.glob("cuda/*.cu")) for a in ARCHITECTURES]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(lambda j: compile_one(compiler, include, *j), jobs))
    for (path, architecture), rows in zip(jobs, results):
        names = subprocess.run(["c++filt"], input="\n".join(r[0] for r in rows), check=True,
                               capture_output=True, text=True).stdout.split("\n")
        for (_, registers, spilled), name in zip(rows, names):
            kernel = re.findall(r"(\w+_kernel)\b", name)
            entry = table[path.name, kernel[0] if kernel else name]
            n, most, worst = entry.get(architecture, (0, 0, 0))
            entry[architecture] = (n + 1, max(most, registers), max(worst, spilled))
    return table


def page(table):
    lines = ["# Registers and spills of the CUDA kernels", "",
             "Written by `scripts/check_registers.py` from what `ptxas` reports; do not edit. The most",
             "of all instances of a template. A hot kernel must not spill: it is where a step's time",
             "goes.", "",
             "| File | Kernel | Hot | Instances | Registers sm_80 | sm_90a | Spilled bytes sm_80 | sm_90a |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for (path, kernel), by in sorted(table.items()):
        counts = [by.get(a, (0, 0, 0)) for a in ARCHITECTURES]
        hot = "yes" if HOT.match(kernel) else ""
        lines.append(f"| {path} | `{kernel}` | {hot} | {counts[0][0]} | {counts[0][1]} | "
                     f"{counts[1][1]} | {counts[0][2]} | {counts[1][2]} |")
    return "\n".join(lines) + "\n"


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    compiler = nvcc()
    if not compiler:
        print("registers: no nvcc, nothing checked")
        return 0
    table = measure(compiler)
    wrong = [f"{path}: {kernel} spills {spilled} bytes on {a}"
             for (path, kernel), by in sorted(table.items()) for a, (_, _, spilled) in by.items()
             if spilled and HOT.match(kernel)]
    if sys.argv[1:] == ["--check"]:
        listed = set(re.findall(r"^\| (\S+) \| `(\w+)`", TABLE.read_text(), re.M))
        if listed != set(table):
            wrong.append("docs/registers.md is stale: run scripts/check_registers.py")
    else:
        TABLE.write_text(page(table))
    print("\n".join(wrong + [f"registers: {len(table)} kernels, {len(wrong)} problems"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
