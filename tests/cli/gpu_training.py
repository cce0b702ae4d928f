"""20 steps of training on the CPU and on a GPU: the losses must agree, and those of the GPU be the same
with --graph. Run by scripts/gpu_check.sh.

usage: WEFT_BIN=build/gpu/bin gpu_training.py [--program NAME] [--small]

--program names another trainer than train_gpt for the GPU's side.
"""
import argparse

import support

STEPS = 20
TOLERANCE = {"f32": 1e-4, "bf16": 1e-2}
# Heads of 64: the bf16 kernels of attention that use tensor cores.
SIZES = ["--layers", 2, "--heads", 2, "--dim", 128, "--seq", 128, "--batch", 8]
SMALL = ["--layers", 1, "--heads", 2, "--dim", 32, "--seq", 32, "--batch", 2]


def losses(folder, out, program, *arguments):
    support.train("--data", support.text(folder), "--out", f"{folder}/{out}", "--steps", STEPS,
                  "--log-every", 1000, "--seed", 3, "--dropout", 0.1, *arguments, program=program)
    return [row["loss"] for row in support.metrics(f"{folder}/{out}")]


def case(arch, options):
    def agrees(folder):
        sizes = ["--arch", arch, *(SMALL if options.small else SIZES)]
        want = losses(folder, "cpu", "train_gpt", *sizes)
        for dtype, tolerance in TOLERANCE.items():
            gpu = [*sizes, "--device", "cuda", "--dtype", dtype]
            got = losses(folder, dtype, options.program, *gpu)
            replayed = losses(folder, f"{dtype}-graph", options.program, *gpu, "--graph")
            assert replayed == got, f"{dtype}: --graph gives other losses: {replayed}, {got}"
            assert len(got) == len(want) == STEPS
            apart = [abs(a - b) / abs(b) for a, b in zip(got, want)]
            worst = max(range(STEPS), key=apart.__getitem__)
            print(f"{arch} {dtype}: at most {apart[worst]:.2e} apart, in step {worst + 1}; "
                  f"loss {got[0]:.4f} to {got[-1]:.4f}")
            assert apart[worst] <= tolerance, f"{dtype}: {apart[worst]:.2e} is above {tolerance}"
    agrees.__name__ = f"agrees_{arch}"
    return agrees


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--program", default="train_gpt")
parser.add_argument("--small", action="store_true")
arguments = parser.parse_args()
support.main([case(arch, arguments) for arch in ("gpt2", "llama")])
