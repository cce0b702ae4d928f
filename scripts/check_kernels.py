#!/usr/bin/env python3
"""Fails if a CUDA kernel, or any instance of a hot kernel, has no emulated test.

usage: check_kernels.py BUILD [--list]    --list also lists the instances of other kernels

BUILD/launched_kernels.txt lists the kernels that the emulated tests of that build launched: run ctest
first. scripts/check_registers.py defines the hot kernels. Of each other kernel one instance must have
run, since f64 and integers use the same lines of code.
"""
import collections
import pathlib
import re
import subprocess
import sys

import check_registers

ROOT = pathlib.Path(__file__).resolve().parent.parent
KERNEL = re.compile(r"__global__\s+void(?:\s+__launch_bounds__\([^)]*\))?\s+(\w+)\s*\(")
INSTANCE = re.compile(r"(?:void )?(?:\w+::)*(\w+_kernel)(?:<.*>)?\(")
# A lambda or variable inside a kernel, or a part split off by the compiler.
INSIDE = re.compile(r"\)::|\[clone")


def declared():
    """{kernel: file} of every __global__ function of the library."""
    found = {}
    for path in sorted([*ROOT.glob("cuda/*.cu"), *ROOT.glob("cuda/*.h")]):
        for name in KERNEL.findall(path.read_text()):
            found[name] = str(path.relative_to(ROOT))
    return found


def instances(listing):
    """{(kernel, symbol): launched} for the listed libraries."""
    offsets = collections.defaultdict(set)
    for line in listing.read_text().splitlines():
        library, offset = line.rsplit(" ", 1)
        offsets[library].add(int(offset, 16))
    found = {}
    for library, wanted in offsets.items():
        table = subprocess.run(["nm", "--demangle", library], check=True, capture_output=True,
                               text=True).stdout
        for line in table.splitlines():
            offset, _, symbol = line.partition(" ")
            symbol = symbol[2:].replace("(anonymous namespace)::", "")
            m = offset and INSTANCE.match(symbol)
            if m and not INSIDE.search(symbol):
                key = m[1], symbol
                found[key] = int(offset, 16) in wanted or found.get(key, False)
    return found


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--list"]):
        sys.exit(__doc__)
    listing = pathlib.Path(sys.argv[1]) / "launched_kernels.txt"
    if not listing.exists():
        sys.exit(f"kernels: {listing} does not exist; run ctest in that build first")
    kernels, found = declared(), instances(listing)
    seen = {kernel for (kernel, _), launched in found.items() if launched}
    untested = [f"{path}: {name} has no emulated test"
                for name, path in kernels.items() if name not in seen]
    missing = {symbol: check_registers.is_hot(kernel, check_registers.kind_of(kernel, symbol))
               for (kernel, symbol), launched in found.items()
               if kernel in kernels and kernel in seen and not launched}
    untested += [f"no emulated test launches {symbol}" for symbol, hot in sorted(missing.items())
                 if hot or sys.argv[2:]]
    n = sum(kernel in kernels for kernel, _ in found)
    print("\n".join(untested + [f"kernels: {len(kernels)} of {n} instances, {n - len(missing)} "
                                f"launched; {sum(missing.values())} hot ones without a test"]))
    return 1 if len(kernels) != len(seen & set(kernels)) or any(missing.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
