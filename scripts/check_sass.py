#!/usr/bin/env python3
"""The machine code of the CUDA kernels that dominate a training step: accesses to global memory by width,
tensor-core instructions, local memory, and how many warps the registers leave room for.

usage: check_sass.py BUILD           writes docs/sass.md
       check_sass.py --check BUILD   fails if a hot kernel has more narrow accesses or accesses to local memory,
                                     fewer tensor-core instructions or fewer warps than docs/sass.md says

Both fail if a hot kernel rounds to bf16 with integer instructions, of which one instruction rounds two numbers, or
accesses local memory, sine and cosine excepted.
Needs cuobjdump and nvdisasm: on the PATH, beside nvcc, or of the wheels nvidia-cuda-cuobjdump and
nvidia-cuda-nvdisasm in the folder WEFT_CUDA_TOOLS. Without them, or without CUDA, it ends with status 77.
A template's row holds the sums over its instances, and the fewest warps. The page needs the code of all
architectures; the check uses those that are present.
"""
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys

from check_registers import ARCHITECTURES, ROOT, arguments, is_hot, refuse_architectures
from check_registers import kind_of as dtype_of

PAGE = ROOT / "docs" / "sass.md"
COLUMNS = ["wide loads", "narrow loads", "wide stores", "narrow stores", "tensor", "local", "warps"]
FUNCTION = re.compile(r"Function : (\w+)")
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*)")
# x + 0x7fff + its last bit that remains: half an ulp of bf16, ties to even (core/low_precision.h).
ROUNDING = re.compile(r"\b0x7fff\b")
REGISTERS = re.compile(r"Function (\w+):\s*\n\s*REG:(\d+)")
# Sine and cosine of large arguments, among the ops of one instance: the compiler keeps the digits of pi / 2 there.
LOCAL = {("elementwise.cu", "map_dense_kernel")}
PER_MULTIPROCESSOR, MOST_WARPS, UNIT = 65536, 64, 256  # registers; warps; registers are given out in units


def tools():
    """The environment in which cuobjdump runs, or None."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    folders = [os.environ.get("WEFT_CUDA_TOOLS", ""), os.environ["PATH"], str(pathlib.Path(nvcc).resolve().parent)]
    path = os.pathsep.join(filter(None, folders))
    if all(shutil.which(tool, path=path) for tool in ("cuobjdump", "nvdisasm")):
        return {**os.environ, "PATH": path}
    return None


def kind_of(instruction, operands):
    """The column of an instruction, or None."""
    name, *parts = instruction.split(".")
    if "IADD" in instruction and ROUNDING.search(operands):
        return "rounding"
    if name in ("HMMA", "IMMA", "HGMMA", "QGMMA"):
        return "tensor"
    if name in ("LDL", "STL"):
        return "local"
    # LD and ST: where the compiler has lost sight of the space, as behind pointers in memory. It is global.
    if name not in ("LDG", "STG", "LDGSTS", "LD", "ST"):
        return None
    width = "wide" if "128" in parts else "narrow"
    return f"{width} {'stores' if name.startswith('ST') else 'loads'}"


def instances(path, architecture, env):
    """{mangled kernel: its columns}"""
    def dump(option):
        return subprocess.run(["cuobjdump", option, "-arch", architecture, path], env=env, check=True,
                              capture_output=True, text=True).stdout
    registers = {name: int(n) for name, n in REGISTERS.findall(dump("-res-usage"))}
    found, counts = {}, None
    for line in dump("-sass").splitlines():
        if m := FUNCTION.search(line):
            counts = found.setdefault(m[1], collections.Counter())
        elif counts is not None and (m := INSTRUCTION.match(line)) and (column := kind_of(*m.groups())):
            counts[column] += 1
    for name, counts in found.items():
        a_warp = -(-registers[name] * 32 // UNIT) * UNIT
        counts["warps"] = min(MOST_WARPS, PER_MULTIPROCESSOR // a_warp)
    return found


def measure(build, env):
    """{(file, kernel, architecture): (instances, columns)} of the hot kernels."""
    table = {}
    for source in sorted(ROOT.glob("cuda/*.cu")):
        item = build / "CMakeFiles/weft_cuda.dir/cuda" / f"{source.name}.o"
        if not item.exists():
            sys.exit(f"sass: cuda/{source.name} was not compiled in {build}")
        inside = subprocess.run(["cuobjdump", "-lelf", item], env=env, check=True, capture_output=True, text=True).stdout
        for architecture in ARCHITECTURES:
            if f".{architecture}.cubin" not in inside:
                continue
            found = instances(item, architecture, env)
            names = subprocess.run(["c++filt"], input="\n".join(found), check=True, capture_output=True,
                                   text=True).stdout.split("\n")
            for columns, name in zip(found.values(), names):
                kernel = (re.findall(r"(\w+_kernel)\b", name) or [name])[0]
                if not is_hot(kernel, dtype_of(kernel, name)):
                    continue
                n, sums = table.get((source.name, kernel, architecture), (0, collections.Counter(warps=MOST_WARPS)))
                warps = min(sums["warps"], columns["warps"])
                sums = sums + columns
                sums["warps"] = warps
                table[source.name, kernel, architecture] = (n + 1, sums)
    return table


def page(table):
    lines = ["# Machine code of the hot CUDA kernels", "",
             "Written by `scripts/check_sass.py` from a release build; do not edit. A row holds the instructions of all",
             "instances of a template: accesses to global memory of 16 bytes (wide) and less (narrow: single elements at",
             "the ends of rows, indices, sums), tensor-core instructions, accesses to local memory, and how many warps of",
             "the instance with the most registers fit a multiprocessor.", "",
             f"| File | Kernel | Code | Instances | {' | '.join(c.capitalize() for c in COLUMNS)} |",
             f"| {' | '.join(['---'] * (4 + len(COLUMNS)))} |"]
    for (path, kernel, architecture), (n, columns) in sorted(table.items()):
        lines.append(f"| {path} | `{kernel}` | {architecture} | {n} | {' | '.join(str(columns[c]) for c in COLUMNS)} |")
    return "\n".join(lines) + "\n"


def stored():
    """{(file, kernel, architecture): columns} of the page."""
    rows = {}
    for line in PAGE.read_text().splitlines() if PAGE.exists() else []:
        cells = [c.strip(" `") for c in line.strip("|").split("|")]
        if len(cells) == 4 + len(COLUMNS) and cells[3].isdigit():
            rows[tuple(cells[:3])] = dict(zip(["instances", *COLUMNS], map(int, cells[3:])))
    return rows


def software_rounding(table):
    for key, (_, columns) in sorted(table.items()):
        if columns["rounding"]:
            yield (f"{key[0]}: {key[1]} on {key[2]} rounds to bf16 in software {columns['rounding']} times; use "
                   "narrow<T>() of cuda/math.h")


def local_memory(table):
    for key, (_, columns) in sorted(table.items()):
        if columns["local"] and key[:2] not in LOCAL:
            yield f"{key[0]}: {key[1]} on {key[2]} accesses local memory in {columns['local']} places"


def gone(table):
    """Rows of the page for code that this build has no more."""
    architectures = {architecture for _, _, architecture in table}
    for key in sorted(set(stored()) - set(table)):
        if key[2] in architectures:
            yield f"{key[0]}: {key[1]} on {key[2]}: docs/sass.md lists it, and it is gone; run scripts/check_sass.py BUILD"


def problems(table):
    rows = stored()
    for key, (n, columns) in sorted(table.items()):
        where = f"{key[0]}: {key[1]} on {key[2]}"
        if key not in rows or rows[key]["instances"] != n:
            yield f"{where}: docs/sass.md does not list its {n} instances; run scripts/check_sass.py BUILD"
            continue
        for column, worse in (("narrow loads", 1), ("narrow stores", 1), ("local", 1), ("tensor", -1), ("warps", -1)):
            if worse * (columns[column] - rows[key][column]) > 0:
                yield f"{where}: {column}: docs/sass.md says {rows[key][column]}, got {columns[column]}"


def main():
    check, build, has_cuda = arguments("sass", __doc__)
    env = tools()
    if env is None or not has_cuda:
        print(f"sass: skipped: {'cuobjdump and nvdisasm are missing' if env is None else 'the build has no CUDA'}")
        return 77
    table = measure(build, env)
    seen = {architecture for _, _, architecture in table}
    refuse_architectures("sass", seen, check)
    wrong = [*software_rounding(table), *local_memory(table)]
    if check:
        wrong += [*problems(table), *gone(table)]
    if not check:
        PAGE.write_text(page(table))
    print("\n".join(wrong + [f"sass: {sum(n for n, _ in table.values())} kernels for {', '.join(sorted(seen))}, "
                             f"{len(wrong)} problems"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
