#!/usr/bin/env python3
"""Measures Weft, PyTorch and libtorch in alternation and writes the table of ratios.

usage: bench/peers/run.py [--quick] [--rounds N] [--only PART,...] [--build DIR] [--out FILE]
                          [--python FILE] [--wrap COMMAND] [--data FILE] [--cap avx2] [--turns N]

Parts: the models of bench/models.h in f32, bf16 (some of them), scaling, overhead, loss. Every measurement is a separate process
with a warm-up. Within a round the measurements alternate, so that all see the same machine; numbers are
medians over the steps of all rounds. PyTorch runs eager and compiled, with default settings and tuned:
malloc keeps its memory, in huge pages, instead of requesting new pages for large arrays in every step;
and on a non-Intel processor, MKL is set to use its kernels for Intel, which are faster there too. The
first round tries all settings, later ones the best two. Takes about 25 minutes, with --quick 5.

On a machine whose speed changes from minute to minute, --turns N adds N turns to the rounds: Weft and the best two
settings are warmed up and stopped, and in each turn every one of them takes a few steps. The ratio is then the
median of the turns' ratios, with the lowest and the highest beside it. All of them stay in memory meanwhile.
The products of a step alone, in its order, take the same turns: by the in-tree product, oneDNN and MKL. With the
fastest of them and everything else at the floor (bench/floor.h), a step would take the time that is called attainable.
"""
import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

import report
import tuned_torch
import turns
from products import CAPS
from row_file import read_rows

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PEERS = ROOT / "bench" / "peers"
# name: (timed steps, timed steps with --quick, warm-up)
MODELS = {
    "tiny": (20, 10, 3),
    "small": (6, 4, 2),
    "124m-b4-t256": (3, 2, 1),
    "124m-b1-t1024": (3, 2, 1),
    "124m-b4-t64": (6, 4, 2),
}
BF16_MODELS = ["tiny", "small", "124m-b4-t64"]
PARTS = [*MODELS, "bf16", "scaling", "overhead", "loss"]
QUICK = ["tiny", "small", "124m-b4-t256", "124m-b4-t64", "bf16", "scaling", "overhead"]
LOSS_STEPS = 200


class Runner:
    def __init__(self, options, folder):
        self.folder = pathlib.Path(folder)
        self.bin = pathlib.Path(options.build).resolve() / "bin"
        self.python = options.python
        self.wrap = shlex.split(options.wrap)
        self.quick = options.quick

    def measured(self, command, **env):
        return self.output([*self.wrap, *command], **env)

    def output(self, command, **env):
        command = list(map(str, command))
        done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def program(self, setting):
        """The program of a setting of PyTorch, of Weft if it is None, and its environment."""
        if setting is None:
            return [self.bin / "bench_step"], {}
        arguments, env = setting
        return [self.python, PEERS / "gpt.py", *arguments], env

    def product_programs(self, settings):
        """The programs of the products of a step, by engine."""
        weft = [self.bin / "bench_step", "--products", "on"]
        return {"Weft": (weft, {"WEFT_GEMM": "weft"}), "oneDNN": (weft, {"WEFT_GEMM": "onednn"}),
                "MKL": ([self.python, PEERS / "product_sequence.py"], settings["eager, tuned"][1])}

    def steps(self, setting, model, threads, steps, warmup, *more):
        program, env = self.program(setting)
        run = ["--model", model, "--threads", threads, "--steps", steps, "--warmup", warmup]
        return json.loads(self.measured([*program, *run, *more], **env).splitlines()[-1])

    def stopped(self, program, env, model, steps, warmup, count):
        """A program that has taken its warm-up and takes `count` times `steps` steps."""
        run = ["--model", model, "--threads", 2, "--steps", steps * count, "--warmup", warmup, "--pause", steps]
        return turns.Program([*self.wrap, *program, *run], env, steps)

    def rows(self, program, *arguments):
        """The rows of a benchmark as {name: value}."""
        path = self.folder / "rows.json"
        self.measured([self.bin / program, "--json", path, *arguments])
        return {r["name"]: r["value"] for r in read_rows(path)}

    def compile(self, compiler, source, target, *flags):
        self.output([compiler, "-O2", source, "-o", target, *flags])


def torch_settings(runner, cpu):
    plain = {"eager": ([], {}), "compiled": (["--compile"], {})}
    env = tuned_torch.environment(runner.folder, cpu)
    tuned = {f"{name}, tuned": (arguments, env) for name, (arguments, _) in plain.items()}
    return tuned if runner.quick else {**plain, **tuned}


def note(text):
    print(text, file=sys.stderr, flush=True)


def best_two(runs):
    speed = {s: runs[s][0]["tokens_per_s"] for s in runs if s != "weft"}
    return sorted(speed, key=speed.get)[-2:]


def measure_model(runner, name, rounds, settings, dtype="f32", count=0):
    """Alternates Weft, the floor and the settings of PyTorch; returns the runs of each, and the floors."""
    full, quick, warmup = MODELS[name]
    typed = ("--dtype", dtype)
    steps = quick if runner.quick else full
    runs, floors = {"weft": []}, []
    for turn in range(rounds):
        floors.append(runner.rows("bench_roof", "--threads", 2, "--shapes", "no"))
        runs["weft"].append(runner.steps(None, name, 2, steps, warmup, *typed))
        note(f"{name}, {dtype}: weft: {runs['weft'][-1]['tokens_per_s']:.0f} tokens/s")
        for setting in best_two(runs) if turn > 0 else settings:
            try:
                run = runner.steps(settings[setting], name, 2, steps, warmup, *typed)
            except RuntimeError as e:
                note(f"{name}, {dtype}: PyTorch {setting} left out: {e}")
                continue
            runs.setdefault(setting, []).append(run)
            note(f"{name}, {dtype}: PyTorch {setting}: {run['tokens_per_s']:.0f} tokens/s")
    out = {"runs": runs, "floors": floors}
    if count:
        sides = {"weft": None, **{s: settings[s] for s in best_two(runs)}}
        out["turns"] = measure_turns(runner, name, count, {s: runner.program(sides[s]) for s in sides},
                                     runner.product_programs(settings))
    return out


def attainable(name, roofs, gflop, products):
    """Milliseconds of a step at the floor, but for its products with weights (`gflop`), which take `products` ms.
    `roofs`: the rows of bench_roof."""
    at_the_floor = gflop * roofs[f"{name}: floor, products"] / roofs[f"{name}: products"]
    return roofs[f"{name}: floor"] - at_the_floor + products


def measure_turns(runner, name, count, sides, engines):
    """Of each turn: milliseconds of a step of each of `sides` ("steps"), of its products by each of `engines`
    ("products"), of the floor and of what is attainable, and the core-to-core latency in ns right after Weft's steps."""
    _, steps, warmup = MODELS[name]
    roofs, latencies = [], []

    def after(side):
        if side == ("steps", "weft"):
            rows = runner.rows("bench_latency")  # none on one processor
            latencies.extend(ns for name, ns in rows.items() if name.endswith("farthest"))

    def each_turn():
        roofs.append(runner.rows("bench_roof", "--threads", 2, "--shapes", "no"))

    programs = {("steps", s): sides[s] for s in sides} | {("products", e): engines[e] for e in engines}
    started = ((key, runner.stopped(*program, name, steps, warmup, count)) for key, program in programs.items())
    found = turns.take_turns(started, count, after, each_turn)
    note(f"{name}: {count} turns: done")
    out = {"steps": {}, "products": {}, "floor": [rows[f"{name}: floor"] for rows in roofs]}
    for (kind, side), run in found.items():
        out[kind][side] = run["step_ms"]
    gflop = found["products", "Weft"]["gflop"]
    out["attainable"] = [attainable(name, rows, gflop, min(each)) for rows, *each in zip(roofs, *out["products"].values())]
    return {**out, **({"latency": latencies} if latencies else {})}


def measure_scaling(runner, rounds):
    """Median step of `small` in ms, per number of threads."""
    steps = {1: [], 2: []}
    for _ in range(rounds):
        for threads, seen in steps.items():
            seen += runner.steps(None, "small", threads, 3 if runner.quick else 4, 2)["step_ms"]
    note("scaling: done")
    return {str(threads): statistics.median(seen) for threads, seen in steps.items()}


def measure_overhead(runner, rounds):
    ask = ("import torch, torch.utils.cpp_extension as e; "
           "print(int(torch._C._GLIBCXX_USE_CXX11_ABI), *e.include_paths(), *e.library_paths())")
    abi, *folders = runner.output([runner.python, "-c", ask]).split()
    includes = [flag for f in folders if "include" in f for flag in ("-isystem", f)]
    libraries = [f for f in folders if "include" not in f]
    flags = ["-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", *includes, "-Wl,--no-as-needed"]
    for folder in libraries:
        flags += [f"-L{folder}", f"-Wl,-rpath,{folder}"]
    flags += ["-ltorch_cpu", "-ltorch", "-lc10"]
    peer = runner.folder / "overhead"
    runner.compile("g++", PEERS / "overhead.cpp", peer, *flags)
    weft, torch = [], []
    for _ in range(rounds):
        weft.append(runner.rows("bench_overhead", "--threads", 1))
        rows = json.loads(runner.measured([peer]))
        torch.append({r["name"]: r["value"] for r in rows})
    note("overhead: done")
    return {
        side: {name: statistics.median(r[name] for r in runs) for name in runs[0]}
        for side, runs in (("weft", weft), ("libtorch", torch))
    }


def measure_loss(runner, data, settings):
    """Losses of `small` on both sides, from the same weights and text."""
    if data is None:
        listed = subprocess.run(["git", "ls-files", "*.h", "*.cpp", "*.md"], cwd=ROOT, check=True,
                                capture_output=True, text=True).stdout.split()
        data = runner.folder / "text"
        data.write_bytes(b"".join((ROOT / f).read_bytes() for f in listed))
    weights, losses = runner.folder / "weights.safetensors", runner.folder / "losses"
    same = ["--data", data, "--losses", losses]
    out = {}
    runner.steps(None, "small", 2, LOSS_STEPS, 0, "--export", weights, *same)
    out["weft"] = [float(line) for line in losses.read_text().split()]
    runner.steps(list(settings.values())[-1], "small", 2, LOSS_STEPS, 0, "--init", weights, *same)
    out["torch"] = [float(line) for line in losses.read_text().split()]
    note("loss: done")
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, fewer steps and parts")
    parser.add_argument("--rounds", type=int, help="default 2, with --quick 1")
    parser.add_argument("--turns", type=int, default=0, help="turns after the rounds, for the models in f32")
    parser.add_argument("--only", help="parts with commas between: " + ", ".join(PARTS))
    parser.add_argument("--build", default=ROOT / "build" / "release")
    parser.add_argument("--python", default=os.environ.get("PYTHON", "python3"))
    parser.add_argument("--wrap", default="", help="put before every measured program, such as 'nice -n -5'")
    parser.add_argument("--cap", choices=CAPS, default="", help="restrict all libraries to this instruction set")
    parser.add_argument("--data", type=pathlib.Path, help="text of the loss part; default: sources")
    parser.add_argument("--out", help="default: bench/results/<date>-<cpu>-peers.md")
    parser.add_argument("--raw", type=pathlib.Path, help="all that was measured, as JSON; parts "
                        "that the file holds already and --only leaves out join the tables")
    options = parser.parse_args()
    parts = options.only.split(",") if options.only else QUICK if options.quick else PARTS
    if unknown := [p for p in parts if p not in PARTS]:
        parser.error(f"--only: unknown part {unknown[0]}; parts: {', '.join(PARTS)}")
    rounds = options.rounds or (1 if options.quick else 2)

    os.environ.update(CAPS[options.cap])
    machine = report.machine(ROOT)
    if options.cap:
        machine["cpu"] += f" restricted to {options.cap}"
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(options, folder)
        try:
            version = runner.output([options.python, "-c", "import torch; print(torch.__version__)"])
        except RuntimeError:
            sys.exit(f"{options.python} has no PyTorch: pip install torch numpy, or name another "
                     "interpreter with --python")
        settings = torch_settings(runner, machine["cpu"])
        found = {"models": {}}
        if options.raw and options.raw.exists():
            found = json.loads(options.raw.read_text())
            if found["machine"]["cpu"] != machine["cpu"]:
                parser.error(f"--raw: must be of {machine['cpu']}, got {found['machine']['cpu']}")
        found |= {"machine": machine, "torch": version.strip(), "rounds": rounds}
        for part in parts:
            if part in MODELS:
                found["models"][part] = measure_model(runner, part, rounds, settings, count=options.turns)
            elif part == "bf16":
                found["bf16"] = {name: measure_model(runner, name, rounds, settings, "bf16")
                                 for name in BF16_MODELS}
            elif part == "scaling":
                found["scaling"] = measure_scaling(runner, rounds)
            elif part == "overhead":
                found["overhead"] = measure_overhead(runner, rounds)
            else:
                found["loss"] = measure_loss(runner, options.data, settings)
            if options.raw:  # after every part: a later one may fail
                options.raw.write_text(json.dumps(found, indent=1))
    text = report.text(found)
    print(text)
    path = pathlib.Path(options.out or ROOT / "bench" / "results" / report.file_name(machine))
    path.write_text(text)
    note(f"written to {path}")


if __name__ == "__main__":
    main()
