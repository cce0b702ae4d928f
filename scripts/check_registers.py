#!/usr/bin/env python3
"""Registers and spills of the CUDA kernels, from the ptxas reports of the compilation.

usage: check_registers.py BUILD           writes docs/registers.md
       check_registers.py --check BUILD   fails if a kernel on the hot list spills, or if the table
                                          does not list the kernels of the build

BUILD must be configured with -DWEFT_PTXAS_REPORT=ON, which stores the reports next to the objects, so
that incremental builds keep them. A missing report is an error; a build without CUDA ends with status
77. A template's row holds the maximum over its instances. The table needs the code of all
architectures; the check uses those that are present.
"""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "registers.md"
ARCHITECTURES = ["sm_80", "sm_90a"]
# The kernels that dominate a training step. f64 (for gradient checks) and integers are rare: they
# are not on the list.
HOT = re.compile(r"^(map_dense|norm_|softmax|cross_entropy|rope|swiglu|attention|optimizer_adam|"
                 r"grad_norm|reduce_|dropout|index_add_rows|router|token_permute|gated_delta|"
                 r"causal_conv1d)")
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


def reports(build):
    """{file: its report}; every kernel file of the library must have one as new as its object."""
    found, problems = {}, []
    for source in sorted(ROOT.glob("cuda/*.cu")):
        item = build / "CMakeFiles/weft_cuda.dir/cuda" / f"{source.name}.o"
        report = item.with_name(item.name + ".ptxas")
        if not item.exists():
            problems.append(f"cuda/{source.name} was not compiled in {build}")
        elif not report.exists() or report.stat().st_mtime_ns < item.stat().st_mtime_ns:
            problems.append(f"{item} has no report of its own; build it with -DWEFT_PTXAS_REPORT=ON")
        elif not ENTRY.search(report.read_text(errors="replace")):
            problems.append(f"{report} reports no kernel")
        else:
            found[source.name] = report
    if problems:
        sys.exit("\n".join(problems + [f"registers: {len(problems)} reports are missing"]))
    return found


def entries(found):
    """(file, architecture, mangled kernel, registers, bytes spilled), one by one."""
    for path, report in found.items():
        kernel, spilled = None, 0
        for line in report.read_text(errors="replace").splitlines():
            if m := ENTRY.search(line):
                kernel, spilled = m.groups(), 0
            elif m := SPILL.search(line):
                spilled = int(m[1]) + int(m[2])
            elif (m := USED.search(line)) and kernel:
                yield path, kernel[1], kernel[0], int(m[1]), spilled
                kernel = None


def kind_of(kernel, name):
    """The dtypes of the instance: "f64", "integers" or "". Ignores scalars and sums of such a type that
    every instance has."""
    arguments = name.split(kernel, 1)[-1]
    depth = 0
    for end, c in enumerate(arguments):
        depth += {"<": 1, ">": -1}.get(c, 0)
        if depth == 0:
            types = arguments[:end]
            floats = re.search(r"\b(float|bf16|f16)\b", types)
            integers = re.search(r"\b(int|long|char|bool)\b", types)
            return "f64" if "double" in types else "integers" if integers and not floats else ""
    return ""


def measure(build):
    """{(file, kernel, kind): {architecture: (instances, most registers, most bytes spilled)}}"""
    found = list(entries(reports(build)))
    names = subprocess.run(["c++filt"], input="\n".join(e[2] for e in found), check=True,
                           capture_output=True, text=True).stdout.split("\n")
    table = collections.defaultdict(dict)
    for (path, architecture, _, registers, spilled), name in zip(found, names):
        kernel = (re.findall(r"(\w+_kernel)\b", name) or [name])[0]
        entry = table[path, kernel, kind_of(kernel, name)]
        n, most, worst = entry.get(architecture, (0, 0, 0))
        entry[architecture] = (n + 1, max(most, registers), max(worst, spilled))
    return table


def is_hot(kernel, kind):
    return bool(HOT.match(kernel)) and not kind


def page(table):
    lines = ["# Registers and spills of the CUDA kernels", "",
             "Written by `scripts/check_registers.py` from the `ptxas` reports of a release build; do not edit. A",
             "template's row holds the maximum over its instances, with separate rows for f64 and integers. Hot",
             "kernels dominate a step and must not spill; f64 is used to check gradients.",
             "",
             "| File | Kernel | Hot | Instances | Registers sm_80 | sm_90a | Spilled bytes sm_80 | sm_90a |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for (path, kernel, kind), by in sorted(table.items()):
        counts = [by.get(a, (0, 0, 0)) for a in ARCHITECTURES]
        lines.append(f"| {path} | `{kernel}`{' ' * bool(kind)}{kind} | "
                     f"{'yes' if is_hot(kernel, kind) else ''} | {counts[0][0]} | {counts[0][1]} | "
                     f"{counts[1][1]} | {counts[0][2]} | {counts[1][2]} |")
    return "\n".join(lines) + "\n"


def arguments(part, usage):
    """(check, build, whether it has CUDA) of the command line."""
    *options, build = sys.argv[1:] or [""]
    if not build or options not in ([], ["--check"]):
        sys.exit(usage)
    ninja = pathlib.Path(build) / "build.ninja"
    if not ninja.exists():
        sys.exit(f"{part}: {build} is no build by Ninja")
    return bool(options), ninja.parent, "weft_cuda.dir" in ninja.read_text()


def refuse_architectures(part, seen, check):
    """The page is written from a build for every architecture; the check uses those that are there."""
    if not seen or not seen <= set(ARCHITECTURES) or not check and seen != set(ARCHITECTURES):
        sys.exit(f"{part}: code for {', '.join(ARCHITECTURES)} is expected, got {', '.join(sorted(seen)) or 'none'}")


def main():
    check, build, has_cuda = arguments("registers", __doc__)
    if not has_cuda:
        print("registers: skipped: the build has no CUDA")
        return 77
    table = measure(build)
    seen = {a for by in table.values() for a in by}
    refuse_architectures("registers", seen, check)
    wrong = [f"{path}: {kernel} spills {spilled} bytes on {a}"
             for (path, kernel, kind), by in sorted(table.items())
             for a, (_, _, spilled) in by.items() if spilled and is_hot(kernel, kind)]
    if check:
        text = TABLE.read_text() if TABLE.exists() else ""
        missing = {kernel for _, kernel, _ in table} - set(re.findall(r"`(\w+)`", text))
        wrong += [f"docs/registers.md does not list {kernel}; run scripts/check_registers.py BUILD"
                  for kernel in sorted(missing)]
    else:
        TABLE.write_text(page(table))
    kernels = sum(n for by in table.values() for n, _, _ in by.values())
    print("\n".join(wrong + [f"registers: {kernels} kernels for {', '.join(sorted(seen))}, "
                             f"{len(wrong)} problems"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
