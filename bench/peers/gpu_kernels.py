"""The table of the kernels of a training step, from the files of bench_step --kernels, with the times that
bench/gpu/model.py predicts for the card beside the measured ones."""
import json
import pathlib
import sys

from report import table

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "gpu"
sys.path.insert(0, str(FOLDER))
import model

MOST = 25  # rows a step
RELATIVES = ("pcie", "nvl", "40gb", "gh200", "gb200", "4090d", "4090laptop")
HEADS = ["Phase", "Op", "Kernel", "calls", "launches", "ms", "% of kernels", "GB/s", "TFLOP/s", "predicted, ms",
         "measured / predicted"]
SUMS = ("calls", "launches", "seconds", "flops", "bytes", "predicted")


def card_of(gpu):
    """The card of cards.json that nvidia-smi calls by this name; None for a relative of one with other rates."""
    name = gpu.lower().replace(" ", "")
    if any(relative in name for relative in RELATIVES):
        return None
    cards = json.loads((FOLDER / "cards.json").read_text())
    return next((card for key, card in cards.items() if key != "about" and key in name), None)


def predictor(gpu, dtype):
    """A function of a row for the card of this name; it gives 0 if the model does not know the card or dtype."""
    code = json.loads((FOLDER / "code.json").read_text())
    card = card_of(gpu) if dtype == "bf16" else None
    return lambda row: model.predict(card, code, row).seconds if card else 0


def grouped(kernels, predict):
    """Rows of the same phase, op and kernel with other operands together, longest first."""
    groups = {}
    for row in kernels:
        into = groups.setdefault((row["phase"], row["op"], row["kernel"]), dict.fromkeys(SUMS, 0))
        for key, value in {**row, "predicted": predict(row)}.items():
            if key in into:
                into[key] += value
    return sorted(groups.items(), key=lambda item: -item[1]["seconds"])


def quotient(a, b, form="{:.1f}"):
    return form.format(a / b) if a and b else "-"


def cells(names, sums, whole):
    seconds = sums["seconds"]
    return [*names, sums["calls"], sums["launches"], f"{1e3 * seconds:.3f}", quotient(100 * seconds, whole),
            quotient(sums["bytes"] / 1e9, seconds), quotient(sums["flops"] / 1e12, seconds),
            quotient(1e3 * sums["predicted"], 1, "{:.3f}"), quotient(seconds, sums["predicted"], "{:.2f}")]


def kernel_tables(profiles, gpu):
    lines = []
    for profile in profiles:
        groups = grouped(profile["kernels"], predictor(gpu, profile["dtype"]))
        total = {key: sum(sums[key] for _, sums in groups) for key in SUMS}
        rows = [cells(names, sums, total["seconds"]) for names, sums in [*groups[:MOST], (("all", "", ""), total)]]
        lines += [f"## Kernels of a step: {profile['model']} {profile['dtype']}", "",
                  f"Times by events in a step of {1e3 * profile['step_seconds']:.1f} ms; the {len(rows) - 1} longest of "
                  f"{len(groups)}. GB/s counts each operand once. Predictions: `bench/gpu/model.py`.", "",
                  *table(HEADS, rows)]
    return lines
