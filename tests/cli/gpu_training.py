"""Trains 20 steps on the CPU and on a GPU: the losses must agree, and --graph must not change them.
With --ranks instead: several ranks that share the GPU must agree with one rank on the CPU, and a
rerun must give the same losses; also NCCL with one rank if it is installed. Run by
scripts/gpu_check.sh.

usage: WEFT_BIN=build/gpu/bin gpu_training.py [--program NAME] [--small] [--ranks]

--program selects another trainer than train_gpt for the GPU runs.
"""
import argparse
import tempfile

import support

STEPS = 20
TOLERANCE = {"f32": 1e-4, "bf16": 1e-2}
# Heads of 64 use the bf16 attention kernels with tensor cores.
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


def layout_case(name, model, layout, options):
    def agrees(folder):
        sizes = [*model, *(SMALL if options.small else SIZES)]
        want = losses(folder, "cpu", "train_gpt", *sizes)
        for dtype, tolerance in TOLERANCE.items():
            gpu = [*sizes, *layout, "--device", "cuda", "--dtype", dtype]
            got, again = (losses(folder, f"{dtype}-{i}", options.program, *gpu) for i in range(2))
            assert got == again, f"{dtype}: a second run gives other losses: {got}, {again}"
            apart = max(abs(a - b) / abs(b) for a, b in zip(got, want, strict=True))
            print(f"{name} {dtype}: at most {apart:.2e} apart; loss {got[0]:.4f} to {got[-1]:.4f}")
            assert apart <= tolerance, f"{dtype}: {apart:.2e} is above {tolerance}"
    agrees.__name__ = f"agrees_{name}"
    return agrees


MOE = ["--arch", "llama", "--experts", 4, "--router", "sigmoid", "--aux", "bias"]
LAYOUTS = (("dp2", ["--arch", "gpt2"], ["--ranks", 2]),
           ("dp2_zero", ["--arch", "gpt2"], ["--ranks", 2, "--zero"]),
           ("tp2_sp", ["--arch", "llama"], ["--ranks", 2, "--tp", 2, "--sp"]),
           ("ep2", MOE, ["--ranks", 2, "--ep", 2]),
           ("nccl1", ["--arch", "gpt2"], ["--ranks", 1, "--backend", "nccl", "--zero"]))


def has_nccl(options):
    with tempfile.TemporaryDirectory() as folder:
        done = support.run(options.program, "--data", __file__, "--out", folder, *SMALL, "--dry-run",
                           "--device", "cuda", "--ranks", 1, "--backend", "nccl")
    if "libnccl" in done.stderr:
        print(f"nccl1 skipped: {done.stderr.strip()}")
    return "libnccl" not in done.stderr


def cases(options):
    if not options.ranks:
        return [case(arch, options) for arch in ("gpt2", "llama")]
    return [layout_case(*l, options) for l in LAYOUTS if l[0] != "nccl1" or has_nccl(options)]


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--program", default="train_gpt")
parser.add_argument("--small", action="store_true")
parser.add_argument("--ranks", action="store_true")
support.main(cases(parser.parse_args()))
