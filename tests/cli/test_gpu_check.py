"""scripts/gpu_check.sh on the emulated GPU: calls that are stopped and killed in the middle are continued,
nothing is run twice, and the archive and the report have everything. PyTorch and compute-sanitizer are replaced by
stubs."""
import argparse
import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tarfile
import time

from support import BIN, main, refused

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "gpu_check.sh"
FINISHED = re.compile(r"^(ok|FAILED) +(\S+) ", re.M)

# Stands for an interpreter with PyTorch: answers for the peers' programs, and runs all others.
PYTHON = f"""#!{sys.executable}
import json, os, sys, time
arguments = sys.argv[1:]
if arguments == ["-c", "import torch"]:
    sys.exit(0)
if not arguments[0].endswith(("gpt.py", "gpu_ops.py")):
    os.execv(sys.executable, [sys.executable, *arguments])
sys.path.insert(0, "bench/peers")
from row_file import RowFile, read_rows
option = lambda name: arguments[arguments.index(name) + 1]
if arguments[0].endswith("gpt.py"):
    print(json.dumps(dict(model=option("--model"), dtype=option("--dtype"), step_ms=[2.0], tokens_per_s=500.0,
                          peak_bytes=2**30, last_loss=1.5)))
else:
    file = RowFile(option("--json"), resume=True)
    for row in read_rows(option("--names")):
        if row["unit"] == "us" and row["name"] not in file.names:
            file.append([dict(row, value=1.0)])
            time.sleep(0.03 if "eager-1" in option("--json") else 0)  # killed in the middle
"""
NVIDIA_SMI = """#!/bin/sh
case "$*" in *query-gpu=name*) echo "NVIDIA H200, 1.0, 1 MiB, 1 W, 1, 1 MHz, 1 MHz, 1 MHz, 1 MHz" ;; esac
"""
SANITIZER = """#!/bin/sh
shift 4  # --tool NAME --error-exitcode N
exec "$@"
"""


def tools(folder):
    """A folder with the stubs, and the environment that finds them."""
    path = pathlib.Path(folder) / "tools"
    path.mkdir()
    for name, text in (("python", PYTHON), ("nvidia-smi", NVIDIA_SMI), ("compute-sanitizer", SANITIZER)):
        (path / name).write_text(text)
        (path / name).chmod(0o755)
    return {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "PYTHON": str(path / "python")}


class Check:
    """Calls of gpu_check.sh with one --out."""

    def __init__(self, folder, env, out="out"):
        self.out, self.env = pathlib.Path(folder) / out, env
        self.printed = pathlib.Path(folder) / f"{out}.txt"

    def start(self, *arguments):
        command = [SCRIPT, "--out", self.out, "--emulated", BIN, *map(str, arguments)]
        with open(self.printed, "a") as output:
            return subprocess.Popen(command, env=self.env, stdout=output, stderr=output)

    def call(self, *arguments, status=0):
        """What the call printed."""
        before = len(self.printed.read_text()) if self.printed.exists() else 0
        got = self.start(*arguments).wait(timeout=300)
        output = self.printed.read_text()[before:]
        assert got == status, (got, output, self.lines("state"))
        return output

    def stop_at(self, path, lines, sent, *arguments):
        """Sends the signal to a call as soon as the file has so many lines, and returns them."""
        process = self.start(*arguments)
        deadline = time.time() + 120
        while len(self.lines(path)) < lines:
            assert time.time() < deadline and process.poll() is None, (path, self.printed.read_text())
            time.sleep(0.005)
        process.send_signal(sent)
        assert process.wait(timeout=60) == (143 if sent == signal.SIGTERM else -sent)
        return self.lines(path)

    def lines(self, path):
        file = self.out / path
        return file.read_text().splitlines() if file.exists() else []

    def units(self):
        return [line.split()[1] for line in self.lines("state")]

    def packed(self, path):
        with tarfile.open(self.out / "gpu_check.tar.gz") as archive:
            return archive.extractfile(f"./{path}").read().decode().splitlines()


def names(lines):
    return [json.loads(line)["name"] for line in lines]


def interrupted_and_resumed(folder):
    env = tools(folder)
    ours, theirs = "rows/weft-1.jsonl", "rows/eager-1.jsonl"
    for attempt in range(5):  # bench_gpu takes half a second and may win
        check = Check(folder, env, out=f"out-{attempt}")
        kept = check.stop_at(ours, 9, signal.SIGTERM)
        if "rows-weft-1" not in check.units():
            break
    assert check.packed(ours) == kept == check.lines(ours), "the signal must stop bench_gpu and pack its rows"
    assert "rows-weft-1" not in check.units() and "ptx" in check.units()

    output = check.call("--minutes", 0, status=75)
    assert not FINISHED.sub("", output).strip() or "rows-weft-1" in output.split("left for the next call: ")[1], output

    # The stub that is left behind goes on, and the next call waits for it.
    killed = check.stop_at(theirs, 5, signal.SIGKILL)
    assert check.lines(ours)[:len(kept)] == kept, "a row was measured again"
    assert check.packed("state") == check.lines("state")
    last = check.call()
    assert "Killed" not in last, "the shell reports the timers of the archive"
    assert check.lines(theirs)[:len(killed)] == killed
    for path in (ours, theirs):
        assert len(set(names(check.lines(path)))) == len(check.lines(path)), f"{path} has a row twice"

    runs = collections.Counter(unit for _, unit in FINISHED.findall(check.printed.read_text()) if unit != "report")
    assert set(runs) == set(check.units()) and set(runs.values()) == {1}, runs
    assert " 0 failed" in last and "left for" not in last, last
    every = {line.split()[0] for line in check.lines("state")}
    assert every == {"ptx", "native", "steps", "kernels", "rows", "peers", "train", "ranks", "sanitizer", "turns",
                     "compiled"}, every

    report = "\n".join(check.packed("report.md"))
    for part in ("# Emulated NVIDIA H200", "**No figure here is a measurement of a GPU.**", "## Training steps",
                 "| PyTorch, compiled |", "| weft, graph |", "## Kernels of a step", "## Memory-bound kernels", "## Attention", f"{len(check.units())} passed, failed: none"):
        assert part in report, (part, report)
    assert check.packed(ours) == check.lines(ours)
    for unit, graph in (("steps-smoke-bf16-weft-1", None), ("steps-smoke-bf16-weft-graph-1", True)):
        assert json.loads(check.lines(f"steps/{unit}.json")[0])["run"].get("graph") is graph, unit
    row = next(line for line in report.splitlines() if "layer_norm_bwd |" in line).split(" | ")
    assert min(map(float, row[3:8])) >= 0 < float(row[-2]), row

    continues(folder, env, check)


def continues(folder, env, done):
    """Where all is done nothing runs, also from the archive alone, and --again repeats its parts only."""
    output = done.call()
    assert FINISHED.findall(output) == [("ok", "report")], output
    other = Check(folder, env, out="other")
    other.out.mkdir()
    (other.out / "gpu_check.tar.gz").write_bytes((done.out / "gpu_check.tar.gz").read_bytes())
    output = other.call("--again", "ptx,steps")
    ran = {unit for _, unit in FINISHED.findall(output)}
    assert ran == {"ptx", "steps-smoke-bf16-weft-1", "steps-smoke-bf16-weft-graph-1", "report"}, output
    assert sorted(other.units()) == sorted(done.units())
    (other.out / "commit").write_text("another\n")
    assert "of commit another" in other.call(status=2)
    (other.out / "commit").write_text((done.out / "commit").read_text())
    (other.out / "card").write_text("NVIDIA A100\n")
    assert "of card NVIDIA A100, and this is emulated" in other.call(status=2)


UNITS = """set -euo pipefail
fail() { echo "$1" >&2; exit 2; }
out=$OUT python=true minutes=1 again=
. scripts/parts.sh
. scripts/gpu_units.sh
begin_call
current=try
%s
echo "left: ${left[*]}, passed $passed, failed $failed, skipped $skipped"
"""


def limits(folder):
    """A program over its limit fails; one that the end of the call stops, or that has added rows, is left. Results are
    packed while a program runs."""
    def units(text):
        done = subprocess.run(["bash", "-c", UNITS % text], cwd=ROOT, env={**os.environ, "OUT": folder},
                              capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    adds = 'bash -c "echo row >>$OUT/rows; sleep 9"'
    assert units("unit slow 1 1 sleep 9")[-1] == "left: , passed 0, failed 1, skipped 0"
    assert units("deadline=1; unit cut 1 5 sleep 9; unit later 5 5 true")[-1] == \
        "left: cut later, passed 0, failed 0, skipped 0"
    assert units("deadline=$SECONDS; unit late 0 5 sleep 9")[-1] == "left: late, passed 0, failed 0, skipped 0"
    assert units(f"rows_file=$OUT/rows; unit rows 1 1 {adds}")[-1] == "left: rows, passed 0, failed 0, skipped 0"
    assert units("rows_file=$OUT/rows; unit stuck 1 1 sleep 9")[-1] == "left: , passed 0, failed 1, skipped 0"
    assert "long needs a call of --minutes 2" in units("unit long 70 80 true")
    packed = 'bash -c "echo row >$OUT/kept; sleep 3; tar -tzf $OUT/gpu_check.tar.gz | grep -q kept"'
    assert units(f"pack_every=1; unit packs 1 9 {packed}")[-1] == "left: , passed 1, failed 0, skipped 0"
    assert units("unit card 1 5 bash -c 'exit 77'; unit good 1 5 true; unit slow 1 1 true")[-1] == \
        "left: , passed 1, failed 1, skipped 1"


def finds_wheels(folder):
    """Headers and libraries of NVIDIA's wheels, where toolkit and system have none. (This system may have an NCCL.)"""
    folder = pathlib.Path(folder)
    for wheel, header, text, library in (("cu99", "cublasLt.h", "#define CUBLAS_VER_MAJOR 99", "libcublasLt.so.99"),
                                         ("nccl", "nccl.h", "", "libnccl.so.2")):
        for path, content in (("include/" + header, text + "\n"), ("lib/" + library, "")):
            file = folder / "nvidia" / wheel / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
    compiler = folder / "c++"
    compiler.write_text('#!/bin/sh\nexec c++ -nostdinc "$@"\n')
    compiler.chmod(0o755)
    script = '. scripts/gpu_machine.sh; build=$OUT; find_cuda; echo "$CPLUS_INCLUDE_PATH"'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={**os.environ, "OUT": str(folder), "PYTHONPATH": str(folder), "CXX": str(compiler),
             "CUDACXX": str(folder / "toolkit/bin/nvcc"), "PYTHON": sys.executable, "emulated": ""})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{folder}/nvidia/cu99/include:{folder}/nvidia/nccl/include", done.stdout
    link = os.readlink(folder / "cuda-libs" / "libcublasLt.so.99")
    assert link == f"{folder}/nvidia/cu99/lib/libcublasLt.so.99", link


def peers_read_rows(folder):
    """bench/peers/run.py reads what the benchmarks write, also where a file is there already."""
    sys.path.insert(0, str(ROOT / "bench" / "peers"))
    import run

    options = argparse.Namespace(build=BIN.parent, python=sys.executable, wrap="", quick=True)
    runner = run.Runner(options, folder)
    for _ in range(2):
        rows = runner.rows("bench_gpu_emulated", "--quick", "--only", "overhead")
        assert rows and min(rows.values()) >= 0, rows
    latency = runner.rows("bench_latency")  # none on one processor
    assert all(ns > 0 for ns in latency.values()) and len(latency) in (0, 2), latency


def programs_take_turns(_):
    """Programs that pause take their steps in rotation, and one that fails leaves no other behind."""
    sys.path.insert(0, str(ROOT / "bench" / "peers"))
    import turns

    def program(model):
        command = [BIN / "bench_step", "--model", model, "--threads", 1, "--warmup", 1, "--steps", 6, "--pause", 2]
        return turns.Program(command, {}, 2)

    started, events = [], []

    def start(*models):
        for name, model in enumerate(models):
            started.append(program(model))
            yield name, started[-1]

    found = turns.take_turns(start("smoke", "smoke"), 3, events.append, lambda: events.append("turn"))
    assert events == [0, 1, "turn"] * 3, events
    assert [len(found[name]["step_ms"]) for name in (0, 1)] == [3, 3], found
    try:
        turns.take_turns(start("smoke", "unknown"), 3, lambda name: None, lambda: None)
        raise AssertionError("an unknown model was accepted")
    except RuntimeError as error:
        assert "--model: one of tiny" in str(error), error
    assert len(started) == 3 and all(p.process.returncode is not None for p in started)


def reports_every_turn(_):
    """The table of turns has a row for each, with the better of PyTorch's settings, and needs their latency."""
    sys.path.insert(0, str(ROOT / "bench" / "peers"))
    import report

    turns = {"steps": {"weft": [10, 20], "eager": [30, 40], "compiled": [15, 50]}, "floor": [8, 10], "latency": [50, 250],
             "products": {"Weft": [6, 8], "oneDNN": [6, 16], "MKL": [9, 16]}, "attainable": [8, 16]}
    models = {"tiny": {"turns": turns}, "small": {}}
    table = report.turn_table(models)
    assert table[-3:-1] == ["| tiny | 1 | 50 | 10.0 | 8.0 | 15.0 | 1.250 | 1.50 |",
                            "| tiny | 2 | 250 | 20.0 | 10.0 | 50.0 | 2.000 | 2.50 |"], table
    roofs = ["1.50 (1.00 to 2.00)", "1.75 (1.50 to 2.00)", "1.30 (1.00 to 1.60)", "2.50 (1.88 to 3.12)", "1.25 (1.25 to 1.25)"]
    assert report.roof_table(models)[-2] == f"| tiny | 12.0 | {' | '.join(roofs)} |", report.roof_table(models)
    del turns["latency"]
    assert report.turn_table(models) == [] and report.roof_table({"small": {}}) == []


def what_a_step_can_attain(_):
    """The products of a step take turns too, and what they take replaces their part of the floor."""
    sys.path.insert(0, str(ROOT / "bench" / "peers"))
    import run

    roofs = {"tiny: floor": 50, "tiny: floor, products": 40, "tiny: products": 80}
    assert run.attainable("tiny", roofs, 60, 33) == 50 - 30 + 33  # of 80 GFLOP attention has 20
    options = argparse.Namespace(build=BIN.parent, python=sys.executable, wrap="", quick=True)
    runner = run.Runner(options, "unused")
    programs = runner.product_programs({"eager, tuned": ([], {"NAME": "value"})})
    assert [env for _, env in programs.values()] == [{"WEFT_GEMM": "weft"}, {"WEFT_GEMM": "onednn"}, {"NAME": "value"}]
    for engine in ("Weft", "oneDNN"):
        command, env = programs[engine]
        done = subprocess.run([*command, "--model", "smoke", "--warmup", "1", "--steps", "2"], capture_output=True, text=True,
                              timeout=60, env={**os.environ, **env})
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        # One layer of 32 and 61 classes, 32 tokens: forward and two gradients.
        assert len(found["step_ms"]) == 2 and abs(found["gflop"] - 6e-9 * 32 * (12 * 32 * 32 + 61 * 32)) < 1e-12, found


def wrong_uses(folder):
    def call(*arguments):
        return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, timeout=60)

    refused(call("--out", folder, "--only", "rowz"), 2, "--only", "ptx", "rowz")
    refused(call("--out", folder, "--minutes", "many"), 2, "--minutes", "many")
    refused(call("--emulated", str(BIN)), 2, "--out")
    refused(call("--what", "x"), 2, "--what", "--again")
    refused(call("--out"), 2, "--out needs a value")


main([interrupted_and_resumed, limits, finds_wheels, peers_read_rows, programs_take_turns, reports_every_turn,
      what_a_step_can_attain, wrong_uses])
