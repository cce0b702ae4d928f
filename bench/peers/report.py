"""Formats the measurements of run.py as markdown: tables, ratios and goals."""
import datetime
import os
import re
import statistics
import subprocess

# Goals of tokens per second, relative to the best of PyTorch.
SPEED_GOALS = {
    "tiny": 1.4,
    "small": 1.15,
    "124m-b4-t256": 1.1,
    "124m-b1-t1024": 1.15,
    "124m-b4-t64": 1.15,
}
# A step takes at most this multiple of the floor.
FLOOR_GOALS = {"tiny": 1.25}
FLOOR_GOAL = 1.12  # of the others
MEMORY_GOAL = 0.75  # of PyTorch's peak, 124M
SCALING_GOAL = 1.8
LOSS_GOAL = 0.001
# Tokens/s of llm.c's CPU trainer with its own flags on two cores, and the goal as a multiple of it.
LLMC = {"124m-b4-t64": (44, 5), "124m-b4-t256": (35, 8)}
OPS = ["add", "mul", "gelu", "matmul 4x4"]
# ns: the median of the ops.
OVERHEAD_GOALS = {"not recorded": 80, "recorded": 160, "backward": 250}
ALLOCATION = "allocate and free 16 floats"
ALLOCATION_GOAL = 25


def machine(root):
    with open("/proc/cpuinfo") as f:
        cpu = re.search(r"model name\s*: (.*)", f.read())
    commit = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return {
        "cpu": cpu[1].strip() if cpu else os.uname().machine,
        "cores": len(os.sched_getaffinity(0)),
        "date": datetime.date.today().isoformat(),
        "commit": subprocess.run(commit, cwd=root, capture_output=True, text=True).stdout.strip(),
    }


def file_name(m):
    words = re.sub(r"\((R|TM)\)|AMD|Intel|Processor|CPU|@.*", " ", m["cpu"], flags=re.I).lower()
    slug = "-".join(re.findall(r"[a-z0-9]+", words)) or "x86"
    return f"{m['date']}-{slug}-{m['cores']}-cores-peers.md"


def median_step(runs):
    return statistics.median(ms for run in runs for ms in run["step_ms"])


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows] + [""]


class Goals:
    """Goals and results."""

    def __init__(self):
        self.rows = []

    def at_least(self, what, value, goal, form="{:.2f}"):
        self.add(what, form.format(value), "at least " + form.format(goal), value >= goal)

    def at_most(self, what, value, goal, form="{:.2f}"):
        self.add(what, form.format(value), "at most " + form.format(goal), value <= goal)

    def add(self, what, value, goal, ok):
        self.rows.append([what, value, goal, "pass" if ok else "**miss**"])


class Ratio:
    """How many times `below` goes into `above`: of each turn if there are turns, else of the medians."""

    def __init__(self, above, below, turns):
        pairs = zip(above, below) if turns else [(statistics.median(above), statistics.median(below))]
        each = sorted(a / b for a, b in pairs)
        self.value, self.lowest, self.highest = statistics.median(each), each[0], each[-1]
        self.range = f", {each[0]:.2f} to {each[-1]:.2f} in {len(each)} turns" if turns else ""


def all_steps(found, name):
    """Milliseconds of the steps of each program and of the floor, in the rounds."""
    steps = {s: [ms for run in runs for ms in run["step_ms"]] for s, runs in found["runs"].items()}
    return {**steps, "floor": [f[f"{name}: floor"] for f in found["floors"]]}


def one_model(name, found, goals, settings_rows):
    """The row of a model in the first table."""
    rounds, turns = all_steps(found, name), "turns" in found
    steps = {**found["turns"]["steps"], "floor": found["turns"]["floor"]} if turns else rounds  # of what is compared
    tokens = found["runs"]["weft"][0]["step_tokens"]
    weft, floor = (statistics.median(steps[s]) for s in ("weft", "floor"))
    over = Ratio(steps["weft"], steps["floor"], turns)
    peak = {s: max(r["peak_rss_mib"] for r in runs) for s, runs in found["runs"].items()}
    row = [name, f"{weft:.1f}", f"{1e3 * tokens / weft:.0f}", f"{floor:.1f}", f"{over.value:.3f}"]
    goals.at_most(f"{name}: step / floor{over.range}", over.value, FLOOR_GOALS.get(name, FLOOR_GOAL), "{:.3f}")
    peers = {s: statistics.median(ms) for s, ms in steps.items() if s not in ("weft", "floor")}
    if not peers:
        return row + ["-"] * 4
    best = min(peers, key=peers.get)
    every = {s: statistics.median({**rounds, **steps}[s]) for s in found["runs"] if s != "weft"}
    for s in sorted(every, key=every.get):
        imported = found["runs"][s][0]["imported_rss_mib"]
        rate = f"{1e3 * tokens / every[s]:.0f}"
        settings_rows.append([name, s, f"{every[s]:.1f}", rate, f"{peak[s]:.0f}", f"{imported:.0f}"])
    speed = Ratio(steps[best], steps["weft"], turns)
    goals.at_least(f"{name}: speed / PyTorch ({best}){speed.range}", speed.value, SPEED_GOALS[name])
    leanest = min((s for s in peak if s != "weft"), key=peak.get)
    memory = peak["weft"] / peak[leanest]
    if name.startswith("124m"):
        goals.at_most(f"{name}: peak memory / PyTorch ({leanest})", memory, MEMORY_GOAL)
    if name in LLMC:
        rate, times = LLMC[name]
        what = f"{name}: speed / llm.c's {rate} tokens/s"
        goals.at_least(what, 1e3 * tokens / weft / rate, times)
    untuned = [s for s in peers if "tuned" not in s]
    as_it_comes = "-"
    if untuned:
        as_it_comes = f"{Ratio(steps[min(untuned, key=peers.get)], steps['weft'], turns).value:.2f}"
    return row + [f"{speed.value:.2f}", as_it_comes, f"{peak['weft']:.0f}", f"{memory:.2f}"]


def model_tables(found, goals):
    rows, settings_rows = [], []
    for name in (n for n in SPEED_GOALS if n in found["models"]):
        model = found["models"][name]
        rows.append(one_model(name, model, goals, settings_rows))
    heads = ["Model", "step, ms", "tokens/s", "floor, ms", "step / floor"]
    heads += ["speed / PyTorch", "/ untuned PyTorch", "peak RSS, MiB", "of PyTorch's"]
    lines = ["## Training steps, 2 threads, f32", "", *table(heads, rows)]
    heads = ["Model", "PyTorch", "step, ms", "tokens/s", "peak RSS, MiB", "after import, MiB"]
    lines += ["Every setting of PyTorch:", "", *table(heads, settings_rows)]
    roofs = [f for model in found["models"].values() for f in model["floors"]]
    shown = [name for name in roofs[0] if ":" not in name and all(name in f for f in roofs)]
    rows = []
    for name in shown:
        seen = [f[name] for f in roofs]
        rows.append([name, *(f"{v:.{int(v < 10)}f}" for v in (min(seen), statistics.median(seen), max(seen)))])
    heads = ["Roof", "lowest", "median", "highest"]
    lines += turn_table(found["models"]) + roof_table(found["models"])
    return lines + ["The machine over the run (GFLOP/s, GB/s, MiB, instructions, ns):", "", *table(heads, rows)]


def best_peer(turns):
    return min((s for s in turns["steps"] if s != "weft"), key=lambda s: statistics.median(turns["steps"][s]))


def turn_table(models):
    """Every turn; the latency tells whether the two cores shared a last-level cache in it."""
    rows = []
    for name, found in models.items():
        turns = found.get("turns", {})
        if "latency" not in turns:
            continue
        columns = turns["steps"]["weft"], turns["floor"], turns["steps"][best_peer(turns)], turns["latency"]
        for turn, (weft, floor, peer, ns) in enumerate(zip(*columns)):
            rows.append([name, turn + 1, f"{ns:.0f}", f"{weft:.1f}", f"{floor:.1f}", f"{peer:.1f}", f"{weft / floor:.3f}",
                         f"{peer / weft:.2f}"])
    heads = ["Model", "turn", "core to core, ns", "Weft, ms", "floor, ms", "best PyTorch, ms", "step / floor",
             "speed / PyTorch"]
    return ["Every turn, with the core-to-core latency right after Weft's steps:", "", *table(heads, rows)] if rows else []


def roof_table(models):
    """What a step can attain in the same turns: its products with weights by the fastest engine, the rest at the floor."""
    rows = []
    for name, found in models.items():
        if "turns" not in found:
            continue
        turns = found["turns"]
        engines = turns["products"]
        weft, peer = turns["steps"]["weft"], turns["steps"][best_peer(turns)]
        ratios = [(engines["oneDNN"], engines["Weft"]), (engines["MKL"], engines["Weft"]), (turns["attainable"], turns["floor"]),
                  (peer, turns["attainable"]), (weft, turns["attainable"])]
        cells = [Ratio(above, below, True) for above, below in ratios]
        rows.append([name, f"{statistics.median(turns['attainable']):.1f}",
                     *(f"{r.value:.2f} ({r.lowest:.2f} to {r.highest:.2f})" for r in cells)])
    heads = ["Model", "attainable, ms", "products: Weft's speed / oneDNN's", "/ MKL's", "attainable / floor",
             "attainable speed / PyTorch", "step / attainable"]
    about = ("Attainable in the same turns: products with weights alone, in the order of a step, by the fastest of three "
             "libraries, everything else at the floor. Medians (lowest to highest).")
    return [about, "", *table(heads, rows)] if rows else []


def bf16_table(found):
    rows = []
    for name, model in found["bf16"].items():
        rates = {s: 1e3 * runs[0]["step_tokens"] / median_step(runs)
                 for s, runs in model["runs"].items()}
        weft = rates.pop("weft")
        best = max(rates, key=rates.get, default=None)
        peer = [best, f"{rates[best]:.0f}", f"{weft / rates[best]:.2f}"] if best else ["-"] * 3
        f32 = found["models"].get(name)
        gain = "-"
        if f32:
            runs = f32["runs"]["weft"]
            gain = f"{weft * median_step(runs) / (1e3 * runs[0]['step_tokens']):.2f}"
        rows.append([name, f"{weft:.0f}", gain, *peer])
    heads = ["Model", "tokens/s", "/ Weft's f32", "best PyTorch", "tokens/s", "speed / PyTorch"]
    note = "Weft computes in bf16 with f32 master weights, PyTorch by autocast over f32 weights."
    return ["## Training steps, 2 threads, bf16", "", note, "", *table(heads, rows)]


def overhead_table(found, goals):
    weft, torch = found["weft"], found["libtorch"]
    kinds = ["not recorded", "inference mode", "recorded", "backward"]
    rows = []
    for name in [f"{op}, {kind}" for op in OPS for kind in kinds] + [ALLOCATION]:
        ours, theirs = weft.get(name), torch[name]
        mine = [f"{ours:.0f}", f"{theirs:.0f}", f"{theirs / ours:.1f}"] if ours else None
        rows.append([name, *(mine or ["-", f"{theirs:.0f}", "-"])])
    for kind, goal in OVERHEAD_GOALS.items():
        middle, theirs = (statistics.median(s[f"{o}, {kind}"] for o in OPS) for s in (weft, torch))
        what = f"overhead: {kind}, ns (libtorch {theirs:.0f})"
        goals.at_most(what, middle, goal, "{:.0f}")
    what = f"overhead: {ALLOCATION}, ns (libtorch {torch[ALLOCATION]:.0f})"
    goals.at_most(what, weft[ALLOCATION], ALLOCATION_GOAL, "{:.0f}")
    heads = ["16 floats, 1 thread", "Weft, ns", "libtorch, ns", "libtorch / Weft"]
    return ["## Overhead", "", *table(heads, rows)]


def loss_table(losses, goals):
    rows = []
    pairs = {"of the last step": [v[-1] for v in losses.values()]}
    pairs["of the last 10 steps"] = [statistics.mean(v[-10:]) for v in losses.values()]
    for what, (weft, torch) in pairs.items():
        apart = abs(weft / torch - 1)
        rows.append([what, f"{weft:.6f}", f"{torch:.6f}", f"{100 * apart:.4f} %"])
        goals.at_most(f"loss {what}: relative difference", apart, LOSS_GOAL, "{:.6f}")
    steps = len(losses["weft"])
    heads = ["Loss", "Weft", "PyTorch", "apart"]
    return [f"## {steps} steps of small, same weights and data", "", *table(heads, rows)]


def text(found):
    m, goals = found["machine"], Goals()
    head = [
        f"# Weft and its peers: {m['cpu']}, {m['cores']} cores, {m['date']}, commit {m['commit']}",
        "",
        f"PyTorch {found['torch']}; runs in turns, medians over all timed steps. How, and what tuned "
        "means: `bench/peers/run.py`; the floor: `bench/floor.h`. Peak RSS is VmHWM of the process; "
        "PyTorch's holds its libraries, whose part is the column after import.",
        "",
    ]
    body = []
    if found["models"]:
        body += model_tables(found, goals)
    if "bf16" in found:
        body += bf16_table(found)
    if "scaling" in found:
        one, two = found["scaling"]["1"], found["scaling"]["2"]
        goals.at_least("small: 2 threads / 1 thread", one / two, SCALING_GOAL)
        body += [f"`small` takes {one:.0f} ms on 1 thread and {two:.0f} ms on 2.", ""]
    if "overhead" in found:
        body += overhead_table(found["overhead"], goals)
    if "loss" in found:
        body += loss_table(found["loss"], goals)
    heads = ["What", "measured", "goal", ""]
    passed = ["## Goals", "", *table(heads, goals.rows)] if goals.rows else []
    return "\n".join(head + passed + body).rstrip() + "\n"
