#!/usr/bin/env python3
"""Single ops in Weft and in tuned, eager PyTorch, forward and backward, as a table.

usage: bench/peers/ops.py [--rounds N] [--threads N] [--build DIR] [--cap avx2]

Needs PyTorch and gcc. `bench_ops` and the same ops in PyTorch take turns for N rounds; the table has the medians of their
rates, and of the rates' ratio within a round. Rates are those of bench_ops: arrays that must be moved, or operations of
attention that cannot be saved, by time. --cap avx2 restricts both to AVX2.
"""
import argparse
import re
import statistics
import time

import products

NAME = re.compile(r"(?P<op>.*?) \[(?P<shape>[0-9, ]*)\](?P<backward>, backward)?")
SECONDS_EACH, SAMPLES = 0.01, 7


def op_of(torch, name, x):
    """The op of this name in bench_ops, for tensors like x."""
    f, last = torch.nn.functional, x.shape[-1]
    other, weight, bias = torch.randn_like(x), torch.ones(last), torch.zeros(last)
    targets = torch.arange(x.shape[0]) * 31 % last

    def attention(packed):
        q, k, v = packed.transpose(1, 2).chunk(3, dim=1)
        return f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return {
        "add": lambda x: x + other,
        "mul": lambda x: x * other,
        "gelu": lambda x: f.gelu(x, approximate="tanh"),
        "silu": f.silu,
        "softmax": lambda x: x.softmax(-1),
        "dropout": lambda x: f.dropout(x, 0.1),
        "sum over rows": lambda x: x.sum(0),
        "transpose and copy": lambda x: x.t().contiguous(),
        "layer_norm": lambda x: f.layer_norm(x, (last,), weight, bias),
        "rms_norm": lambda x: f.rms_norm(x, (last,), weight),
        "cross_entropy": lambda x: f.cross_entropy(x, targets),
        "attention": attention,
    }["attention" if name.startswith("attention ") else name]


def seconds_forward(f, x):
    def sample(calls):
        start = time.perf_counter()
        for _ in range(calls):
            f(x)
        return time.perf_counter() - start

    sample(1)
    calls = 1
    while sample(calls) < SECONDS_EACH:
        calls *= 2
    return statistics.median(sample(calls) for _ in range(SAMPLES)) / calls


def seconds_backward(torch, f, x):
    x = x.detach().clone().requires_grad_()
    samples = []
    for _ in range(SAMPLES + 2):
        y = f(x)
        dy = torch.ones_like(y)
        start = time.perf_counter()
        y.backward(dy)
        samples.append(time.perf_counter() - start)
        x.grad = None
    return statistics.median(samples[2:])


def one_round(torch, options):
    """(Weft's rate, PyTorch's, unit) by row."""
    found = {}
    rows = products.rows_of(options.build / "bin/bench_ops", "--threads", options.threads)
    for name, rate in rows.items():
        match = NAME.fullmatch(name)
        if not match:
            continue
        x = torch.randn([int(n) for n in match["shape"].split(",")])
        op = op_of(torch, match["op"], x)
        if match["backward"]:
            seconds = seconds_backward(torch, op, x)
        else:
            with torch.no_grad():
                seconds = seconds_forward(op, x)
        found[name] = rate, rows[name + ", work"] / seconds
    return found


def main():
    parser = argparse.ArgumentParser()
    products.add_options(parser)
    options = parser.parse_args()
    products.choose_environment(options)
    import torch
    torch.set_num_threads(options.threads)
    rounds = [one_round(torch, options) for _ in range(options.rounds)]
    print("| GB/s, attention GFLOP/s | forward: Weft | PyTorch | ratio | backward: Weft | PyTorch | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in rounds[0]:
        if name.endswith(", backward"):
            continue
        cells = []
        for row in name, name + ", backward":
            weft, torch_rate = zip(*(found[row] for found in rounds))
            ratios = [a / b for a, b in zip(weft, torch_rate)]
            cells += [f"{statistics.median(weft):.1f}", f"{statistics.median(torch_rate):.1f}",
                      f"{statistics.median(ratios):.2f}"]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
