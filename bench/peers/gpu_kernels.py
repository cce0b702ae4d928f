"""The table of the kernels of a training step, from the files of bench_step --kernels."""
from report import table

MOST = 25  # rows a step


def grouped(kernels):
    """Rows of the same phase, op and kernel with other operands together, longest first."""
    groups = {}
    for row in kernels:
        into = groups.setdefault((row["phase"], row["op"], row["kernel"]), dict.fromkeys(
            ("calls", "launches", "seconds", "flops", "bytes"), 0))
        for key in into:
            into[key] += row[key]
    return sorted(groups.items(), key=lambda item: -item[1]["seconds"])


def rate(work, seconds, unit):
    return f"{work / seconds / unit:.1f}" if work and seconds else "-"


def kernel_tables(profiles):
    lines = []
    for profile in profiles:
        groups = grouped(profile["kernels"])
        whole = sum(sums["seconds"] for _, sums in groups)
        rows = [[*names, sums["calls"], sums["launches"], f"{1e3 * sums['seconds']:.3f}",
                 f"{100 * sums['seconds'] / whole:.1f}" if whole else "-",
                 rate(sums["bytes"], sums["seconds"], 1e9), rate(sums["flops"], sums["seconds"], 1e12)]
                for names, sums in groups[:MOST]]
        lines += [f"## Kernels of a step: {profile['model']} {profile['dtype']}", "",
                  f"Times by events, {1e3 * whole:.1f} ms of {1e3 * profile['step_seconds']:.1f} ms; GB/s counts each "
                  f"operand once. The {len(rows)} longest of {len(groups)}.", "",
                  *table(["Phase", "Op", "Kernel", "calls", "launches", "ms", "% of kernels", "GB/s", "TFLOP/s"], rows)]
    return lines
