#!/usr/bin/env python3
"""The MoE layers of bench/bench_moe.cpp in PyTorch, as a loop over the experts.

usage: moe.py [--threads N] [--rounds N] [--only NAME] [--json FILE]

Each expert gathers the rows of its tokens, applies its MLP and adds the results to the output with
index_add_; noise chooses the experts. Forward and backward, the median of all rounds. Rows have the
names of bench_moe's, so that the two tables can be compared.
"""
import argparse
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("moe.py needs PyTorch: pip install torch numpy, or run it with another interpreter")

from row_file import RowFile

# name: (dim, ffn of an expert, experts, experts per token, tokens)
SIZES = {
    "C256 F512 E8 k2": (256, 512, 8, 2, 2048),
    "C384 F768 E8 k2": (384, 768, 8, 2, 2048),
    "C384 F192 E32 k4": (384, 192, 32, 4, 2048),
    "C128 F256 E8 k2": (128, 256, 8, 2, 2048),
}


class Moe(torch.nn.Module):
    def __init__(self, dim, ffn, experts, topk):
        super().__init__()
        self.topk = topk
        self.router = torch.nn.Parameter(0.02 * torch.randn(experts, dim))
        self.gate_up = torch.nn.Parameter(0.02 * torch.randn(experts, 2 * ffn, dim))
        self.down = torch.nn.Parameter(0.02 * torch.randn(experts, dim, ffn))

    def forward(self, x):
        logits = F.linear(x, self.router)
        logits = logits + (torch.randn_like(logits) - logits).detach()
        values, chosen = logits.topk(self.topk)
        probs = values.softmax(-1)
        y = torch.zeros_like(x)
        for e in range(self.router.shape[0]):
            token, slot = torch.where(chosen == e)
            gate, up = F.linear(x[token], self.gate_up[e]).chunk(2, -1)
            h = F.silu(gate) * up * probs[token, slot].unsqueeze(1)
            y.index_add_(0, token, F.linear(h, self.down[e]))
        return y


def seconds(model, tokens, dim, rounds):
    x = torch.randn(tokens, dim, requires_grad=True)
    dy = torch.randn(tokens, dim)
    samples = []
    for i in range(rounds + 2):
        start = time.perf_counter()
        model(x).backward(dy)
        model.zero_grad(set_to_none=True)
        x.grad = None
        if i >= 2:
            samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    chosen = {name: size for name, size in SIZES.items() if args.only in name}
    if not chosen:
        parser.error(f"--only: must be a part of one of {', '.join(SIZES)}, got '{args.only}'")
    file = RowFile(args.json)
    for name, (dim, ffn, experts, topk, tokens) in chosen.items():
        rate = tokens / seconds(Moe(dim, ffn, experts, topk), tokens, dim, args.rounds)
        row = {"name": f"{name}, layer, experts", "value": rate, "unit": "tokens/s"}
        print(f"{row['name']:44} {rate:12.4g} tokens/s", flush=True)
        file.append([row])


if __name__ == "__main__":
    main()
