#!/usr/bin/env python3
"""The products of a step with weights in PyTorch, as bench_step --products on runs them in Weft.

usage: product_sequence.py --model NAME [--threads N] [--steps N] [--warmup N] [--pause N]

Prints one line of JSON.
"""
import argparse
import json
import os
import signal
import time

import gpt
import torch


class ProductSequence:
    """Forward through the layers, then backward, each layer with tensors of its own: see bench/product_sequence.h."""

    def __init__(self, config):
        dim, rows = config.dim, config.batch * config.tokens
        layer = [(3 * dim, dim), (dim, dim), (4 * dim, dim), (dim, 4 * dim)]
        weights = layer * config.layers + [(config.vocab, dim)]
        self.gflop = 6e-9 * sum(rows * n * k for n, k in weights)
        self.state = [(torch.full((rows, k), 0.5), torch.full((n, k), 0.25), torch.empty(rows, n), torch.empty(n, k))
                      for n, k in weights]
        inner = {k for _, k in weights}  # only these widths can be those of dx and dy at once
        self.gradients = {columns: [torch.full((rows, columns), 0.125) for _ in range(2 if columns in inner else 1)]
                          for columns in {columns for weight in weights for columns in weight}}

    def run(self):
        for x, w, y, _ in self.state:
            torch.mm(x, w.t(), out=y)
        dx = self.gradients[self.state[-1][2].shape[1]][0]
        for x, w, y, dw in reversed(self.state):
            dy = dx if dx.shape[1] == y.shape[1] else self.gradients[y.shape[1]][0]
            dx = next(g for g in self.gradients[x.shape[1]] if g is not dy)
            torch.mm(dy.t(), x, out=dw)
            torch.mm(dy, w, out=dx)

    def timed(self):
        """Seconds of one run."""
        start = time.perf_counter()
        self.run()
        return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=gpt.MODELS, required=True)
    for flag, default in (("threads", 2), ("steps", 5), ("warmup", 2), ("pause", 0)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    step, milliseconds = ProductSequence(gpt.MODELS[o.model]), []
    for i in range(-o.warmup, o.steps):
        if o.pause and i >= 0 and i % o.pause == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        seconds = step.timed()
        if i >= 0:
            milliseconds.append(1e3 * seconds)
    print(json.dumps({"model": o.model, "threads": o.threads, "gflop": step.gflop, "step_ms": milliseconds}))


if __name__ == "__main__":
    main()
