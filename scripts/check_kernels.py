#!/usr/bin/env python3
"""Fails when a CUDA kernel has no emulated test.

usage: check_kernels.py BUILD

BUILD/launched_kernels.txt lists what the emulated tests of that build launched: run ctest first.
"""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KERNEL = re.compile(r"__global__\s+void(?:\s+__launch_bounds__\([^)]*\))?\s+(\w+)\s*\(")


def declared():
    """{kernel: file} of every __global__ function of the library."""
    found = {}
    for path in sorted([*ROOT.glob("cuda/*.cu"), *ROOT.glob("cuda/*.h")]):
        for name in KERNEL.findall(path.read_text()):
            found[name] = str(path.relative_to(ROOT))
    return found


def launched(listing):
    """The names of the kernels that lie at the listed offsets of the listed libraries."""
    offsets = collections.defaultdict(set)
    for line in listing.read_text().splitlines():
        library, offset = line.rsplit(" ", 1)
        offsets[library].add(int(offset, 16))
    names = set()
    for library, wanted in offsets.items():
        table = subprocess.run(["nm", "--demangle", library], check=True, capture_output=True,
                               text=True).stdout
        for line in table.splitlines():
            parts = line.split(" ", 2)
            if len(parts) == 3 and parts[0] and int(parts[0], 16) in wanted:
                names |= set(re.findall(r"(\w+_kernel)\b", parts[2]))
    return names


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    listing = pathlib.Path(sys.argv[1]) / "launched_kernels.txt"
    if not listing.exists():
        sys.exit(f"kernels: {listing} does not exist; run ctest in that build first")
    kernels, seen = declared(), launched(listing)
    untested = [f"{path}: {name} has no emulated test"
                for name, path in kernels.items() if name not in seen]
    print("\n".join(untested + [f"kernels: {len(kernels)}, {len(untested)} without a test"]))
    return 1 if untested else 0


if __name__ == "__main__":
    sys.exit(main())
