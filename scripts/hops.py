#!/usr/bin/env python3
"""Prints how many frames and files lie between the call of an op and its kernel on the CPU.

    cmake -S . -B build/hops -G Ninja -DCMAKE_BUILD_TYPE=Debug -DWEFT_CUDA=OFF -DWEFT_TESTS=OFF && cmake --build build/hops --target weft
    scripts/hops.py build/hops

Needs g++ and gdb. The frames are those of the project, lambdas and templates included, from the op to the formula of an
element, a function of core/cpu/simd, or the call of oneDNN: what a reader steps through."""
import pathlib
import re
import subprocess
import sys
import tempfile

OPS = {"add": "a + b", "softmax": "softmax(a, -1)", "layer_norm": "layer_norm(a, {}, {}, 1e-5)", "linear": "linear(a, b)",
       "attention": "attention(a.view({1, 8, 8, 64}), b.view({1, 8, 8, 64}), b.view({1, 8, 8, 64}))"}
INCLUDES = ["attention", "elementwise", "layer_norm", "linear", "softmax"]
KERNEL = re.compile(r"_ZN4weft\d+simd_(scalar|avx2|avx512)|_ZN4weft5applyILNS_8BinaryOpE0EfE")
CUT = re.compile(r"@@(\w+)\n(.*?)hop_\1", re.S)


def program():
    lines = [f'#include "weft/autograd/{name}.h"' for name in INCLUDES]
    lines += ["using namespace weft;", "Tensor a, b;"]
    lines += [f'extern "C" __attribute__((noinline)) void hop_{op}() {{ {call}; }}' for op, call in OPS.items()]
    calls = "".join(f"hop_{op}(); " for op in OPS)
    return "\n".join(lines + [f"int main() {{ a = Tensor::ones({{64, 64}}), b = Tensor::ones({{64, 64}}); {calls}}}\n"])


def commands(library):
    symbols = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout.split()
    kernels = sorted({s for s in symbols if KERNEL.match(s)})
    yield from ["set pagination off", "set breakpoint pending on", "start"]
    yield from [f"break {name}" for name in [*kernels, "dnnl_sgemm", "dnnl_primitive_execute"]]
    yield "disable"
    for op in OPS:
        yield from [f"tbreak hop_{op}", "continue", "enable", "continue", f"echo @@{op}\\n", "bt", "disable"]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        source, binary, script = (pathlib.Path(folder, name) for name in ("hops.cpp", "hops", "gdb"))
        source.write_text(program())
        subprocess.run(["g++", "-std=c++20", "-g", f"-I{build}/include", source, "-o", binary, f"-L{build}/lib", "-lweft",
                        f"-Wl,-rpath,{build}/lib"], check=True)
        script.write_text("\n".join(commands(build / "lib/libweft.so")) + "\n")
        # One processor: the calling thread then runs every kernel.
        out = subprocess.run(["taskset", "-c", "0", "gdb", "-batch", "-x", script, binary], capture_output=True, text=True)
    counted = 0
    for op, text in CUT.findall(out.stdout):
        files = [f for f in re.findall(r" at (\S+):\d+$", text, re.M) if not f.startswith("/usr/")]
        print(f"{op:12s} {len(files):3d} frames {len(set(files)):3d} files")
        counted += 1
    return 0 if counted == len(OPS) else 1


sys.exit(main())
