#!/usr/bin/env python3
"""The instructions on the hot paths of the CUDA kernels of a training step, for bench/gpu/model.py.

usage: hot_path.py BUILD [FILE]     writes bench/gpu/code.json, or FILE
       hot_path.py --check BUILD    fails if a kernel has more instructions a byte, narrower stores or more
                                    clocks of shared memory than bench/gpu/code.json says (by over 2 %)

A hot path is, of all paths through a loop (or a kernel without one), that which accesses most bytes of memory,
or has most tensor-core instructions, and among equals the shortest. Cold blocks that the compiler has placed
behind the kernel are on none. The counts are of sm_90a. Needs the tools that scripts/check_sass.py needs; without
them, or without CUDA, it ends with status 77.
"""
import collections
import json
import os
import re
import subprocess
import sys

from check_registers import ROOT, arguments
from check_sass import FUNCTION, PER_MULTIPROCESSOR, MOST_WARPS, REGISTERS, UNIT, tools

TABLE = ROOT / "bench" / "gpu" / "code.json"
CODE = "sm_90a"
LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
TARGET = re.compile(r"0x([0-9a-f]+)")
WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
TOLERANCE = 1.02

# Kernel of dispatch(): file, instance, and passes over the data: what the loop of each must contain ("all": the
# whole kernel). `moved`: the bytes of its operands that a pass covers, where its loop also reads parameters.
# `full`: the width of the stores if every pack of elements is stored at once.
Memory = collections.namedtuple("Memory", "file instance passes moved full", defaults=(None, 16))
LOOP = ("LDG STG",)
MEMORY = {
    "layer_norm_fwd": Memory("norm.cu", "norm_fwd_kernel<true, bf16, 32, 8, 4>", ("all",), 256),
    "layer_norm_bwd": Memory("norm.cu", "norm_bwd_kernel<true, bf16, 32, 8, 3>", LOOP, 192),
    "cross_entropy_in_place": Memory("cross_entropy.cu", "cross_entropy_in_place_kernel<512, bf16>",
                                     ("LDG STS", "LDS STG")),
    "adam_step": Memory("optimizer.cu", "optimizer_adam_kernel<float, true>", LOOP, full=10),
    "rope": Memory("rope.cu", "rope_kernel<bf16, float, 8>", ("all",)),
    "dropout": Memory("dropout.cu", "dropout_kernel<bf16, 2>", ("all",)),
    "swiglu_fwd": Memory("swiglu.cu", "swiglu_fwd_kernel<bf16, 8>", ("all",)),
    "swiglu_bwd": Memory("swiglu.cu", "swiglu_bwd_kernel<bf16, 8>", ("all",)),
    "binary": Memory("elementwise_binary.cu", "map_dense_kernel<8, bf16, Binary<(BinaryOp)0, bf16>, bf16, bf16>",
                     ("all",)),
    "scale_by": Memory("elementwise.cu", "map_dense_kernel<8, bf16, ScaleBy<bf16>, bf16>", ("all",)),
    "add_scaled": Memory("elementwise.cu", "map_dense_kernel<4, float, AddScaled<float>, float, float>", ("all",)),
    "copy": Memory("copy.cu", "map_dense_kernel<4, bf16, ToBf16, float>", ("all",), full=8),
}
# Kernels of attention that run on tensor cores; of how many products of tokens by tokens.
Tensor = collections.namedtuple("Tensor", "kernel file instance products")
TENSOR = [Tensor("attention_fwd", "attention.cu", "attention_fwd_kernel<bf16, 64, false>", 2),
          Tensor("attention_bwd", "attention_dq.cu", "attention_dq_kernel<bf16, 64, false>", 3),
          Tensor("attention_bwd", "attention_dkdv.cu", "attention_dkdv_kernel<bf16, 64, false>", 4)]

Instruction = collections.namedtuple("Instruction", "address guarded name arguments")


def width(parts):
    return next((WIDTHS[p] for p in parts if p in WIDTHS), 4)


def gain(instruction):
    """What a hot path has most of."""
    name, *parts = instruction.name.split(".")
    return width(parts) if name in ("LDG", "STG", "LDS", "STS", "LDGSTS") else 64 if name == "HMMA" else 0


class Kernel:
    def __init__(self, instructions):
        self.code = [i for i in instructions if i.name != "NOP"]
        self.at = {i.address: n for n, i in enumerate(self.code)}

    def target(self, n):
        """The index that the branch at n jumps to; None if it is no branch."""
        i = self.code[n]
        address = TARGET.search(i.arguments)
        return self.at.get(int(address[1], 16)) if i.name.startswith("BRA") and address else None

    def loops(self):
        """(first, last) of every backward branch."""
        for n in range(len(self.code)):
            to = self.target(n)
            if to is not None and to < n:
                yield to, n

    def path(self, first, last):
        """The instructions of the hot path from first to last, without jumps backwards; None if there is none."""
        best = {last: (gain(self.code[last]), -1, None)}  # (gain, minus instructions, next)
        for n in range(last - 1, first - 1, -1):
            i, to = self.code[n], self.target(n)
            ends = i.name.startswith(("EXIT", "RET", "BRX")) or (i.name.startswith("BRA") and to is None)
            follow = [] if (to is not None or ends) and not i.guarded else [n + 1]
            if to is not None and to > n:
                follow.append(to)
            found = [(best[m][0], best[m][1], m) for m in follow if m in best]
            if found:
                most = max(found, key=lambda f: f[:2])
                best[n] = (most[0] + gain(i), most[1] - 1, most[2])
        n, taken = first if first in best else None, []
        while n is not None:
            taken.append(self.code[n])
            n = best[n][2]
        return taken or None

    def hot(self, needs):
        """The path of a pass: over the loop with these kinds of instructions and most bytes."""
        if needs == "all":
            last = max(n for n, i in enumerate(self.code) if i.name.startswith("EXIT") and not i.guarded)
            return self.path(0, last)
        paths = []
        for first, last in self.loops():
            path = self.path(first, last)
            kinds = {i.name.split(".")[0] for i in path or []}
            # What looks like a loop with a barrier holds cold blocks: data passes by without one.
            if kinds >= set(needs.split()) and ("BAR" not in kinds or "HMMA" in kinds):
                paths.append(path)
        return max(paths, key=lambda p: (sum(map(gain, p)), -len(p))) if paths else None


def accesses(path, *names):
    """Widths of the accesses of these kinds."""
    split = [i.name.split(".") for i in path]
    return [width(parts) for name, *parts in split if name in names]


def memory_row(kernel, spec, warps):
    slots, stores = 0.0, []
    for needs in spec.passes:
        path = kernel.hot(needs)
        if path is None:
            return None
        moved = spec.moved or sum(accesses(path, "LDG", "STG"))
        slots += len(path) / moved / len(spec.passes)
        stores += accesses(path, "STG")
    # Mean width by bytes, so that single numbers beside the data hardly count.
    mean = sum(w * w for w in stores) / sum(stores) if stores else spec.full
    return {"instance": spec.instance, "slots_per_byte": round(slots, 3),
            "store_factor": round(max(1.0, spec.full / mean), 2), "warps": warps}


def tensor_row(kernel, spec, warps):
    path, whole = kernel.hot("HMMA"), kernel.hot("all")
    if path is None or whole is None:
        return None
    hmma = sum(i.name.startswith("HMMA") for i in path)
    # A warp's access of 4 bytes a lane takes one clock; ldmatrix of four tiles 512 bytes.
    clocks = sum(w / 4 for w in accesses(path, "LDS", "STS", "LDGSTS"))
    clocks += sum(4 if i.name.endswith(".4") else 2 for i in path if i.name.startswith("LDSM"))
    return {"instance": spec.instance, "products": spec.products, "hmma": hmma,
            "slots_per_hmma": round(len(path) / hmma, 2), "slots_outside": float(len(whole) - len(path)),
            "shared_clocks_per_hmma": round(clocks / hmma, 2), "warps": warps}


def kernels_of(item, env):
    """{readable name: (kernel, warps)}"""
    def dump(option):
        return subprocess.run(["cuobjdump", option, "-arch", CODE, item], env=env, check=True, capture_output=True,
                              text=True).stdout
    registers = {name: int(n) for name, n in REGISTERS.findall(dump("-res-usage"))}
    code, inside = {}, None
    for line in dump("-sass").splitlines():
        if m := FUNCTION.search(line):
            inside = code.setdefault(m[1], [])
        elif inside is not None and (m := LINE.match(line)):
            # Where the compiler has lost sight of the space, memory is global: nothing else has an address here.
            name = re.sub(r"^(LD|ST)(?=\.|$)", r"\1G", m[3])
            inside.append(Instruction(int(m[1], 16), bool(m[2]), name, m[4]))
    names = subprocess.run(["c++filt"], input="\n".join(code), check=True, capture_output=True, text=True).stdout
    found = {}
    for mangled, name in zip(code, names.splitlines()):
        a_warp = -(-registers[mangled] * 32 // UNIT) * UNIT
        short = re.sub(r"weft::|cuda::|\(anonymous namespace\)::|void ", "", name)
        found[short] = Kernel(code[mangled]), min(MOST_WARPS, PER_MULTIPROCESSOR // a_warp)
    return found


def measure(build, env):
    files, table = {}, {"code": CODE, "memory": {}, "tensor": []}

    def row_of(spec, make):
        item = build / "CMakeFiles/weft_cuda.dir/cuda" / f"{spec.file}.o"
        if spec.file not in files:
            files[spec.file] = kernels_of(item, env) if item.exists() else {}
        for name, (kernel, warps) in files[spec.file].items():
            if name.startswith(spec.instance + "("):
                return make(kernel, spec, warps)
        return None

    for name, spec in MEMORY.items():
        if row := row_of(spec, memory_row):
            table["memory"][name] = row
    for spec in TENSOR:
        if row := row_of(spec, tensor_row):
            table["tensor"].append({"kernel": spec.kernel, **row})
    return table


def problems(table, stored):
    pairs = [(name, row, stored["memory"].get(name)) for name, row in table["memory"].items()]
    old = {row["instance"]: row for row in stored["tensor"]}
    pairs += [(row["instance"], row, old.get(row["instance"])) for row in table["tensor"]]
    for name, row, before in pairs:
        if before is None:
            yield f"{name}: bench/gpu/code.json does not list it; run scripts/hot_path.py BUILD"
            continue
        for column, value in row.items():
            if isinstance(value, float) and value > before[column] * TOLERANCE:
                yield f"{name}: {column}: bench/gpu/code.json says {before[column]}, got {value}"


def main():
    file = sys.argv.pop() if len(sys.argv) == 3 and sys.argv[1] != "--check" else TABLE
    check, build, has_cuda = arguments("hot_path", __doc__)
    env = tools()
    if env is None or not has_cuda:
        print(f"hot_path: skipped: {'cuobjdump and nvdisasm are missing' if env is None else 'the build has no CUDA'}")
        return 77
    table = measure(build, env)
    expected = set(MEMORY) | {t.instance for t in TENSOR}
    missing = sorted(expected - set(table["memory"]) - {row["instance"] for row in table["tensor"]})
    wrong = [f"{name}: no such kernel or loop in the build" for name in missing]
    if check:
        wrong += problems(table, json.loads(TABLE.read_text()))
    else:
        with open(os.fspath(file), "w") as out:
            out.write(json.dumps(table, indent=1) + "\n")
    print("\n".join(wrong + [f"hot_path: {len(expected) - len(missing)} kernels, {len(wrong)} problems"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
