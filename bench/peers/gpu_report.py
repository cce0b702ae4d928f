#!/usr/bin/env python3
"""Combines the measurements of scripts/gpu_check.sh into tables that compare Weft with PyTorch.

usage: gpu_report.py DIR... [--file FILE]     DIR: the folders given to gpu_check.sh by --out
       gpu_report.py --machine FILE [--emulated]   describes this machine as JSON

Reads what is there so far: rows in PART/weft-N.jsonl, eager-N.jsonl, cudnn-N.jsonl and compiled-N.jsonl, training
steps and kernel times in PART/UNIT.json, the state and machine.json. Without --file it writes
bench/results/<date>-<gpu>.md.
"""
import argparse
import datetime
import json
import pathlib
import re
import statistics
import subprocess
import sys

from gpu_kernels import card_of, kernel_tables
from report import Goals, table
from row_file import read_rows

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MEMORY_GOAL = 85  # percent of the copy rate
ATTENTION_GOAL = 1.0  # times the rate of PyTorch's flash attention
STEP_GOAL = ("124m-b64-t1024", "bf16", 1.0)  # times the speed of compiled PyTorch
QUERY = ("name,driver_version,memory.total,power.limit,temperature.gpu,clocks.sm,clocks.mem,"
         "clocks.max.sm,clocks.max.mem")
# FLOPs per token by llm.c's convention, 6 N + 6 L C T.
TOKEN_FLOPS = {"124m": (124.5e6, 12, 768), "350m": (355e6, 24, 1024), "774m": (774e6, 36, 1280),
               "1558m": (1558e6, 48, 1600)}
SIDES = ("weft", "eager", "compiled", "cudnn")


def output(*command):
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""


def this_machine():
    gpu = output("nvidia-smi", "--query-gpu=" + QUERY, "--format=csv,noheader").splitlines()
    values = gpu[0].split(", ") if gpu else []
    return {
        **dict(zip(QUERY.split(","), values)),
        "cuda": output("nvcc", "--version").split("release ")[-1].split(",")[0],
        "torch": output(sys.executable, "-c", "import torch; print(torch.__version__)"),
        "date": datetime.date.today().isoformat(),
        "commit": output("git", "describe", "--always", "--dirty", "--exclude=*") or "unknown",
    }


def measurements(folders):
    """{side: {name: [values]}} for times, and {name: [values]} for Weft's other units."""
    times, rates = {side: {} for side in SIDES}, {}
    for folder in folders:
        for side in SIDES:
            for path in sorted(folder.glob(f"*/{side}-*.jsonl")):
                for row in read_rows(path):
                    timed = row["unit"] in ("us", "ns/op")
                    into = times[side] if timed else rates if side == "weft" else {}
                    into.setdefault(row["name"], []).append(row["value"])
    return times, rates


class Rows:
    def __init__(self, folders):
        self.times, self.rates = measurements(folders)
        self.names = [n for n in self.times["weft"] if not re.search(r": p\d0$", n)]

    def time(self, side, name):
        values = self.times[side].get(name)
        return statistics.median(values) if values else None

    def rate(self, name, what):
        values = self.rates.get(f"{name}: {what}")
        return statistics.median(values) if values else None

    def spread(self, name):
        low, high = (self.time("weft", f"{name}: {p}") for p in ("p10", "p90"))
        return "-" if low is None else f"{low:.1f} to {high:.1f}"


def number(value, form="{:.1f}"):
    return "-" if value is None else form.format(value)


def over(a, b):
    return a / b if a is not None and b else None


def best(*values):
    known = [v for v in values if v is not None]
    return min(known) if known else None


def memory_table(rows, goals):
    lines = []
    for name in (n for n in rows.names if rows.rate(n, "of copy") is not None):
        ours, share = rows.time("weft", name), rows.rate(name, "of copy")
        eager, compiled = rows.time("eager", name), rows.time("compiled", name)
        lines.append([name, number(ours), rows.spread(name), number(share), number(eager),
                      number(compiled), number(over(best(eager, compiled), ours), "{:.2f}")])
        goals.at_least(f"{name}: percent of copy", share, MEMORY_GOAL, "{:.0f}")
    heads = ["Memory-bound", "us", "p10 to p90", "% of copy", "eager, us", "compiled, us",
             "best PyTorch / ours"]
    return ["## Memory-bound kernels", "", *table(heads, lines)] if lines else []


def arithmetic_tables(rows, goals):
    attention, products = [], []
    for name in rows.names:
        ours, rate = rows.time("weft", name), rows.rate(name, "rate")
        if rate is None or rows.rate(name, "of copy") is not None or name.startswith("copy"):
            continue
        eager = rows.time("eager", name)
        ratio = over(eager, ours)
        of_eager = None if ratio is None else rate / ratio
        row = [name, number(ours), rows.spread(name), number(rate), number(of_eager)]
        if name.startswith("attention"):
            cudnn = over(rows.time("cudnn", name), ours)
            attention.append([*row, number(None if cudnn is None else rate / cudnn),
                              number(ratio, "{:.2f}"), number(cudnn, "{:.2f}")])
            if ratio is not None and "bf16" in name:
                goals.at_least(f"{name}: times torch-flash", ratio, ATTENTION_GOAL)
        else:
            products.append([*row, number(ratio, "{:.2f}")])
    lines = []
    if attention:
        heads = ["Attention", "us", "p10 to p90", "TFLOP/s", "torch flash", "torch cuDNN",
                 "speed / flash", "speed / cuDNN"]
        lines += ["## Attention (batch x heads x tokens x head dim; causal counted half)", "",
                  *table(heads, attention)]
    if products:
        heads = ["Product (M x N x K)", "us", "p10 to p90", "TFLOP/s", "torch", "speed / torch"]
        lines += ["## Products", "", *table(heads, products)]
    return lines


def overhead_table(rows):
    lines = [[n, number(rows.time("weft", n), "{:.0f}"), number(rows.time("eager", n), "{:.0f}"),
              number(over(rows.time("eager", n), rows.time("weft", n)))]
             for n in rows.names if n.endswith((": issued", ": done"))]
    heads = ["16 floats", "Weft, ns", "PyTorch, ns", "PyTorch / Weft"]
    return ["## Overhead", "", *table(heads, lines)] if lines else []


def utilisation(model, tokens_per_second, gpu):
    size, _, length = model.rsplit("-", 2)
    card = card_of(gpu)
    if size not in TOKEN_FLOPS or card is None:
        return None
    n, layers, dim = TOKEN_FLOPS[size]
    per_token = 6 * n + 6 * layers * dim * int(length[1:])
    return 100 * tokens_per_second * per_token / card["peak"]


def results(folders, key):
    """The objects with this key in PART/UNIT.json, in the order of their units."""
    found = [json.loads(path.read_text()) for folder in folders for path in sorted(folder.glob("*/*.json"))]
    return [entry for entry in found if key in entry]


def step_table(folders, goals, gpu):
    runs = {}
    for entry in results(folders, "side"):
        run = entry["run"]
        runs.setdefault((run["model"], run["dtype"]), {}).setdefault(entry["side"], []).append(run)
    lines = []
    for (model, dtype), sides in runs.items():
        speed = {s: statistics.median(r["tokens_per_s"] for r in found) for s, found in sides.items()}
        for side, found in sides.items():
            last = found[-1]
            mfu = utilisation(model, speed[side], gpu) if model.count("-") == 2 and dtype == "bf16" else None
            syncs = number(last["host_syncs"], "{:.2f}") if "host_syncs" in last else "-"
            ms = statistics.median(ms for r in found for ms in r["step_ms"])
            who = side if side.startswith("weft") else f"PyTorch, {side}"
            lines.append([model, dtype, who, f"{ms:.2f}", f"{speed[side]:.0f}", number(mfu),
                          f"{last['peak_bytes'] / 2**30:.2f}", syncs, f"{last['last_loss']:.4f}",
                          number(over(speed.get("weft"), speed[side]), "{:.2f}")])
        compiled = [s for side, s in speed.items() if side.startswith("compiled")]
        if (model, dtype) == STEP_GOAL[:2] and compiled and "weft" in speed:
            goals.at_least(f"{model} {dtype}: speed / best compiled PyTorch",
                           speed["weft"] / max(compiled), STEP_GOAL[2])
    heads = ["Model", "dtype", "side", "step, ms", "tokens/s", "MFU, %", "peak, GiB",
             "host waits a step", "last loss", "Weft's speed / this"]
    note = ["MFU: 6 N + 6 L C T FLOPs a token over the dense bf16 peak of the datasheet. PyTorch: in bf16 autocast over "
            "f32 weights, logits kept as a whole, the vocabulary padded as Weft's.", ""]
    return ["## Training steps", "", *note, *table(heads, lines)] if lines else []


def checked(folders):
    """A line about the units in the files `state`."""
    lines = [line.split() for f in folders if (f / "state").exists() for line in (f / "state").read_text().splitlines()]
    wrong = [unit for _, unit, verdict, _ in lines if verdict != "ok"]
    return f"Parts of the check: {len(lines) - len(wrong)} passed, failed: {', '.join(wrong) or 'none'}."


def text(folders, machine):
    rows, goals = Rows(folders), Goals()
    name = machine.get("name", "GPU")
    body = step_table(folders, goals, name) + kernel_tables(results(folders, "kernels"), name)
    body += memory_table(rows, goals) + arithmetic_tables(rows, goals) + overhead_table(rows)
    copies = [f"{n} at {rows.rate(n, 'rate'):.0f} GB/s read and written" for n in rows.names
              if n.startswith("copy") and rows.rate(n, "rate")]
    head = [
        f"# {name}, {machine['date']}, commit {machine['commit']}", "",
        f"Driver {machine.get('driver_version', '?')}, CUDA {machine.get('cuda') or '?'}, PyTorch "
        f"{machine.get('torch') or '?'}; SM clock {machine.get('clocks.sm', '?')} at the start (at most "
        f"{machine.get('clocks.max.sm', '?')}), memory clock {machine.get('clocks.max.mem', '?')}, power "
        f"limit {machine.get('power.limit', '?')}. Runs in turns, medians. Copy: {'; '.join(copies) or '-'}. "
        "How: `bench/gpu/gpu_bench.h`, `bench/peers/gpu_ops.py`, `scripts/gpu_check.sh`.", "",
        checked(folders), "",
    ]
    if machine.get("emulated"):
        head[:1] = [f"# Emulated {name}", "", "**No figure here is a measurement of a GPU.**"]
    heads = ["What", "measured", "goal", ""]
    return "\n".join(head + ["## Goals", "", *table(heads, goals.rows)] + body).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=pathlib.Path)
    parser.add_argument("--file", type=pathlib.Path)
    parser.add_argument("--machine", type=pathlib.Path)
    parser.add_argument("--emulated", action="store_true")
    options = parser.parse_args()
    if options.machine:
        options.machine.write_text(json.dumps({**this_machine(), "emulated": options.emulated}, indent=1))
        return
    if not options.folders:
        parser.error("name the folders that gpu_check.sh wrote")
    found = [f / "machine.json" for f in options.folders if (f / "machine.json").exists()]
    machine = json.loads(found[-1].read_text()) if found else this_machine()
    slug = "-".join(re.findall(r"[a-z0-9]+", machine.get("name", "gpu").lower()))
    path = options.file or ROOT / "bench" / "results" / f"{machine['date']}-{slug}.md"
    path.write_text(text(options.folders, machine))
    print(f"written to {path}")


if __name__ == "__main__":
    main()
