#!/usr/bin/env python3
"""Predicts the time of a training step on a GPU from the work of its kernels. The result is a prediction by a
written model, not a measurement.

usage: bench_step --model 124m-b64-t1024 --device meta:cuda --dtype bf16 --kernels FILE
       bench/gpu/model.py FILE [--card h100|...|all] [--code CODE] [--rows N]
       bench/gpu/model.py --shares [--card ...]     percent of the copy rate that large calls of kernels reach

The time of a call of a kernel is

  norm_p(limits) + launches x GAP        and at least launches x LEAST

A limit is the time that one resource alone would take:
  DRAM      operand bytes / copy rate
  L2        (bytes read + bytes written x store factor) / L2 rate. The factor is how much narrower than a whole pack
            the kernel's stores are: a warp that writes packs of 16 bytes in pieces writes every sector several times.
  issue     instructions a byte x bytes / (32 lanes x 4 schedulers x multiprocessors x clock)
  tensor    of cuBLASLt's products: waves x (multiplications of a tile / (rate / multiprocessors) + tile_us), for the
            best of TILES and of splits of K. Of attention: mma.sync instructions x clocks of the tensor core, of
            issue and of shared memory, by what the kernel holds in its loop over tiles and, for issue, outside.
norm_p(x) = (x1^p + x2^p + ...)^(1/p): limits overlap the better the more warps a multiprocessor holds, so
p = warps / 8, between 2 and 8; 4 for products. Rates: cards.json, with sources. Instructions, store factors and
warps: code.json, written by scripts/hot_path.py from the machine code of the bf16 kernels for GPT-2 124M; other
dtypes and widths take the same numbers.

Not modelled: the host, caches that keep an operand between kernels, clocks that fall with power, bank conflicts,
the last wave of kernels that are no product. Where FILE was recorded on a GPU, its times stand beside.
"""
import argparse
import collections
import json
import math
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
GAP = 1.0e-6    # between two kernels of a stream; 0.88 us in a CUDA graph (cuda.juliagpu.org, usage/graphs)
LEAST = 1.5e-6  # of a kernel that does nothing: start and end of its blocks
TILES = [(128, 256), (256, 128), (128, 192), (192, 128), (128, 128)]
LEAST_SPLIT = 512  # terms of a sum that is split over blocks
HMMA_FLOPS = 4096  # of one mma.sync m16n8k16
# The operand that is the result of a product.
RESULT = {"gemm": -1, "gemm_bias": -1, "gemm_gelu": -1, "gemm_gelu_bwd": 2, "gemm_bias_grad": -2}
# Products of tokens by tokens that the FLOPs of attention stand for, and the tiles of queries and keys.
ATTENTION = {"attention_fwd": (2, (128, 64)), "attention_bwd": (5, (64, 64))}
TENSOR_HEADS = (64, 128)
PLAIN_SHARE = 0.25  # of the multiply-add peak that attention without tensor cores reaches; assumed
# Launches of a call where a recording without a GPU has none, counted on the emulated GPU; 1 where not listed.
LAUNCHES = {"layer_norm_bwd": 2, "rms_norm_bwd": 2, "attention_bwd": 3, "adam_step": 2, "grad_squares": 3,
            "index_add": 8}

Row = collections.namedtuple("Row", "phase op kernel operands calls seconds limits launches bytes measured")


def refuse(text):
    sys.exit(f"model: {text}")


def shapes(operands):
    """[[64, 768], ...] of "bf16 64x768, f32 768t, ..."; [] for a scalar."""
    dims = [operand.split(" ")[1:] for operand in operands.split(", ")]
    return [[int(n) for n in d[0].rstrip("t").split("x")] if d else [] for d in dims]


def norm(limits, p):
    most = max(limits)
    return most * sum((x / most) ** p for x in limits) ** (1 / p) if most > 0 else 0.0


def product_seconds(card, m, n, k):
    """The best tile and split of K of one product."""
    rate = card["gemm"] / card["sms"]
    best = math.inf
    for rows, cols in TILES:
        tiles = math.ceil(m / rows) * math.ceil(n / cols)
        for splits in range(1, max(2, min(32, k // LEAST_SPLIT) + 1)):
            waves = math.ceil(tiles * splits / card["sms"])
            each = 2 * rows * cols * (k / splits) / rate + card["tile_us"] * 1e-6
            # Parts of a sum are f32, written and read once.
            parts = 8 * m * n * splits / card["copy"] if splits > 1 else 0
            best = min(best, waves * each + parts)
            if tiles * splits > 4 * card["sms"]:
                break
    return best


def covered(tokens, queries, keys):
    """Scores in the tiles that causal attention computes."""
    return sum(queries * min(tokens, math.ceil((first + queries) / keys) * keys)
               for first in range(0, tokens, queries))


def attention_seconds(card, code, row):
    """The limit by tensor cores, issue and shared memory, which few warps overlap badly."""
    products, (queries, keys) = ATTENTION[row["kernel"]]
    batch, tokens, heads, dim = shapes(row["operands"])[0]
    flops = row["flops"] / row["calls"]
    if flops == 0:  # packed rows count none
        return 0.0
    kernels = [k for k in code["tensor"] if k["kernel"] == row["kernel"]]
    if dim not in TENSOR_HEADS or not kernels:
        return flops / (PLAIN_SHARE * card["sms"] * 256 * card["clock"])
    pairs = flops / (2 * products * batch * heads * dim)
    computed = covered(tokens, queries, keys) if pairs < 0.75 * tokens * tokens else tokens * tokens
    tiles = computed / (tokens * keys)  # of a block
    clocks = 0.0
    for kernel in kernels:
        instructions = kernel["products"] * flops / products * max(1, computed / pairs) / HMMA_FLOPS
        slots = kernel["slots_per_hmma"] + kernel["slots_outside"] / (max(1, tiles) * kernel["hmma"])
        limits = [HMMA_FLOPS / card["mma"], slots / 4, kernel["shared_clocks_per_hmma"]]
        clocks += instructions * norm(limits, 2)
    return clocks / (card["sms"] * card["clock"])


def memory_limits(card, kernel, size):
    # About half of the bytes of an element-wise kernel are written.
    return {"DRAM": size / card["copy"],
            "L2": size * (1 + kernel["store_factor"]) / 2 / card["l2"],
            "issue": size * kernel["slots_per_byte"] / (128 * card["sms"] * card["clock"])}


def predict(card, code, row):
    calls, kernel = row["calls"], row["kernel"]
    size = row["bytes"] / calls
    launches = row["launches"] / calls or LAUNCHES.get(kernel, 1)
    limits, p = {"DRAM": size / card["copy"]}, 4
    if "rate" in row:  # published for a library's kernel
        limits["tensor"] = row["flops"] / calls / row["rate"]
    elif kernel in ATTENTION:
        limits["tensor"] = attention_seconds(card, code, row)
    elif row["flops"] > 0:
        result = shapes(row["operands"])[RESULT.get(kernel, -1)]
        n, elements = result[-1], math.prod(result)
        limits["tensor"] = product_seconds(card, elements // n, n, round(row["flops"] / calls / 2 / elements))
    elif memory := code["memory"].get(kernel):
        limits, p = memory_limits(card, memory, size), min(8, max(2, memory["warps"] / 8))
    seconds = max(norm(limits.values(), p), launches * LEAST) + launches * GAP
    return Row(row["phase"], row["op"], kernel, row["operands"], calls, calls * seconds,
               {name: calls * s for name, s in limits.items()}, round(calls * launches), row["bytes"],
               row.get("seconds", 0))


def kind(row):
    return "attention" if "attention" in row.kernel else "products" if "tensor" in row.limits else "others"


def by_kernel(rows):
    """Rows of the same op, kernel and phase together, whatever their operands."""
    sums = {}
    for r in rows:
        key = (r.phase, r.op, r.kernel, kind(r))
        old = sums.get(key)
        if old is None:
            sums[key] = r
            continue
        limits = {name: old.limits.get(name, 0) + r.limits.get(name, 0) for name in {**old.limits, **r.limits}}
        sums[key] = old._replace(calls=old.calls + r.calls, seconds=old.seconds + r.seconds, limits=limits,
                                 launches=old.launches + r.launches, bytes=old.bytes + r.bytes,
                                 measured=old.measured + r.measured)
    return sorted(sums.values(), key=lambda r: -r.seconds)


def shares(card, code):
    """{kernel: the part of the copy rate that a call reaches whose launch does not count}"""
    size = 1 << 32
    rows = {name: {"phase": "", "op": "", "kernel": name, "operands": "", "calls": 1, "launches": 1, "flops": 0,
                   "bytes": size} for name in code["memory"]}
    return {name: size / card["copy"] / predict(card, code, row).seconds for name, row in rows.items()}


def table(card, code, step, count):
    rows = [predict(card, code, row) for row in step["kernels"]]
    total = sum(r.seconds for r in rows)
    measured = sum(r.measured for r in rows) > 0
    yield f"Prediction, not a measurement: {step['model']} on {card['name']}"
    yield f"{'':50} calls      ms  share  limit   of copy" + ("  measured ms" if measured else "")
    for r in by_kernel(rows)[:count]:
        limit = max(r.limits, key=r.limits.get)
        share = f"{100 * r.bytes / card['copy'] / r.seconds:6.0f} %" if kind(r) == "others" else ""
        name = f"{r.phase} {r.op or '-'} {r.kernel}"
        line = f"{name[:50]:50} {r.calls:5} {1e3 * r.seconds:7.2f} {100 * r.seconds / total:4.0f} %  {limit:7} {share:8}"
        yield (line + (f" {1e3 * r.measured:11.2f}" if measured else "")).rstrip()
    for name in ("products", "attention", "others"):
        part = [r for r in rows if kind(r) == name]
        yield f"all {name:46} {sum(r.calls for r in part):5} {1e3 * sum(r.seconds for r in part):7.2f}"
    launches = sum(r.launches for r in rows)
    yield f"{'gaps between launches, within the above':50} {launches:5} {1e3 * launches * GAP:7.2f}"
    yield f"predicted step: {1e3 * total:.1f} ms, {step['step_tokens'] / total / 1e3:.0f} thousand tokens/s"


def read_json(path, what):
    try:
        return json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError) as e:
        refuse(f"{what} must be a JSON file, got {path}: {e}")


def load(path):
    step = read_json(path, "FILE")
    if not isinstance(step, dict) or not step.get("kernels"):
        refuse(f"FILE must be written by bench_step --kernels, got {path}")
    if step.get("dtype", "bf16") != "bf16":
        refuse(f"FILE must be a step in bf16, the only dtype whose products have rates, got {step['dtype']}")
    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?")
    parser.add_argument("--shares", action="store_true")
    parser.add_argument("--card", default="h100")
    parser.add_argument("--code", default=FOLDER / "code.json")
    parser.add_argument("--rows", type=int, default=10)
    options = parser.parse_args()
    cards = read_json(FOLDER / "cards.json", "cards.json")
    names = [name for name in cards if name != "about"]
    if options.card not in [*names, "all"]:
        refuse(f"--card: one of {', '.join(names)}, all, got {options.card}")
    if bool(options.file) == options.shares:
        refuse("either FILE or --shares is needed")
    code = read_json(options.code, "--code")
    for name in names if options.card == "all" else [options.card]:
        if options.shares:
            print(f"Prediction, not a measurement: percent of the copy rate on {cards[name]['name']}")
            print("\n".join(f"{kernel:30} {100 * share:4.0f}" for kernel, share in shares(cards[name], code).items()))
        else:
            print("\n".join([*table(cards[name], code, load(options.file), options.rows), ""]))


if __name__ == "__main__":
    main()
