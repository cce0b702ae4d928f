#!/usr/bin/env python3
"""The models of bench/models.h in PyTorch, trained as bench_step --model trains them.

usage: gpt.py --model NAME [--device cpu|cuda] [--dtype f32|bf16] [--threads N] [--steps N]
              [--warmup N] [--compile [MODE]] [--sdpa BACKEND] [--init FILE] [--data FILE]
              [--losses FILE] [--pause N]

Prints one line of JSON. Uses PyTorch's fast paths: fused attention, fused AdamW, foreach clipping,
gradients set to None; with --compile, torch.compile over model and loss. bf16 is autocast
over f32 weights, as PyTorch trains GPTs. --sdpa names one attention backend; without it PyTorch
chooses. On a GPU the vocabulary is padded and steps are timed as in bench/train_run.cpp.
"""
import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import struct
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    sys.exit("gpt.py needs PyTorch: pip install torch numpy, or name another interpreter with PYTHON=")


class Config:
    def __init__(self, layers, heads, dim, seq, vocab, batch, tokens):
        self.layers, self.heads, self.dim, self.seq = layers, heads, dim, seq
        self.vocab, self.batch, self.tokens = vocab, batch, tokens


MODELS = {
    "tiny": Config(4, 4, 128, 256, 256, 8, 256),
    "small": Config(6, 6, 384, 256, 256, 12, 256),
    "124m-b4-t256": Config(12, 12, 768, 1024, 50257, 4, 256),
    "124m-b1-t1024": Config(12, 12, 768, 1024, 50257, 1, 1024),
    "124m-b4-t64": Config(12, 12, 768, 1024, 50257, 4, 64),
    "124m-b4-t1024": Config(12, 12, 768, 1024, 50257, 4, 1024),
    "124m-b16-t1024": Config(12, 12, 768, 1024, 50257, 16, 1024),
    "124m-b64-t1024": Config(12, 12, 768, 1024, 50257, 64, 1024),
    "350m-b32-t1024": Config(24, 16, 1024, 1024, 50257, 32, 1024),
    "774m-b16-t1024": Config(36, 20, 1280, 1024, 50257, 16, 1024),
    "1558m-b8-t1024": Config(48, 25, 1600, 1024, 50257, 8, 1024),
    "smoke": Config(1, 2, 32, 16, 61, 2, 16),
}
GPU_VOCAB_MULTIPLE = 64  # as in bench/models.h
GROUP = 5  # timed steps between two waits for the GPU, as in bench/train_run.h


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.heads
        self.attn_norm = nn.LayerNorm(c.dim)
        self.qkv = nn.Linear(c.dim, 3 * c.dim)
        self.proj = nn.Linear(c.dim, c.dim)
        self.mlp_norm = nn.LayerNorm(c.dim)
        self.up = nn.Linear(c.dim, 4 * c.dim)
        self.down = nn.Linear(4 * c.dim, c.dim)

    def forward(self, x):
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(self.attn_norm(x)).split(dim, dim=2)
        q, k, v = (t.view(batch, tokens, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, tokens, dim))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, c, vocab):
        super().__init__()
        self.embed = nn.Embedding(vocab, c.dim)
        self.positions = nn.Embedding(c.seq, c.dim)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.dim)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                small = (2 * c.layers) ** -0.5 if re.search(r"(proj|down)\.weight", name) else 1
                nn.init.normal_(p, std=0.02 * small)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids, targets):
        x = self.embed(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def load_weights(model, path):
    """Loads a .safetensors file with Weft's parameter names."""
    with open(path, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
        data = f.read()
    header.pop("__metadata__", None)
    state = {}
    for name, entry in header.items():
        if entry["dtype"] != "F32":
            sys.exit(f"gpt.py: {path}: {name} must be F32, got {entry['dtype']}")
        begin, end = entry["data_offsets"]
        values = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32)
        state[re.sub(r"\.(attn|mlp)\.", ".", name)] = values.view(entry["shape"])
    model.load_state_dict(state)


class Batches:
    """Batches by the rule of bench/train_run.h, so that both sides see the same tokens."""

    def __init__(self, config, path):
        self.config = config
        self.text = None
        if path:
            with open(path, "rb") as f:
                self.text = torch.frombuffer(bytearray(f.read()), dtype=torch.uint8).long()

    def row(self, i):
        c = self.config
        if self.text is None:
            index = i * (c.tokens + 1) + torch.arange(c.tokens + 1)
            return ((index * 2654435761) % 2**32 // 256) % c.vocab
        first = i * 1000003 % (len(self.text) - c.tokens)
        return self.text[first : first + c.tokens + 1]

    def at(self, step):
        c = self.config
        rows = torch.stack([self.row(step * c.batch + r) for r in range(c.batch)])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def peak_rss_mib():
    with open("/proc/self/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+)", f.read())[1]) / 1024


class Trainer:
    def __init__(self, options):
        self.options, self.config = options, MODELS[options.model]
        self.cuda = options.device == "cuda"
        vocab = self.config.vocab
        if self.cuda:
            vocab = -(-vocab // GPU_VOCAB_MULTIPLE) * GPU_VOCAB_MULTIPLE
        model = Gpt(self.config, vocab)
        if options.init:
            load_weights(model, options.init)
        model.to(options.device)
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=3e-4, weight_decay=0.01, fused=True)
        mode = None if options.compile in (None, "default") else options.compile
        self.loss_of = torch.compile(model, mode=mode) if options.compile else model
        self.batches = Batches(self.config, options.data)

    def attention(self):
        if not self.options.sdpa:
            return contextlib.nullcontext()
        from torch.nn.attention import SDPBackend, sdpa_kernel
        return sdpa_kernel(getattr(SDPBackend, self.options.sdpa))

    def step(self, ids, targets):
        ids, targets = (t.to(self.options.device, non_blocking=True) for t in (ids, targets))
        bf16 = self.options.dtype == "bf16"
        with torch.autocast(self.options.device, torch.bfloat16, enabled=bf16), self.attention():
            loss = self.loss_of(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def run_on_cpu(self):
        seconds, losses = [], []
        o = self.options
        for step in range(o.warmup + o.steps):
            batch = self.batches.at(step)
            if o.pause and step >= o.warmup and (step - o.warmup) % o.pause == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            start = time.perf_counter()
            losses.append(self.step(*batch).item())
            if step >= o.warmup:
                seconds.append(time.perf_counter() - start)
        return seconds, losses

    def run_on_gpu(self):
        """Seconds per step of each group, and all losses. The host waits only after each group."""
        o = self.options
        prepared = [[t.pin_memory() for t in self.batches.at(s)] for s in range(o.warmup + o.steps)]
        # A clone, because with CUDA graphs the next step overwrites this loss.
        losses = [self.step(*batch).clone() for batch in prepared[: o.warmup]]
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        seconds = []
        for first in range(o.warmup, len(prepared), GROUP):
            group = prepared[first : first + GROUP]
            start = time.perf_counter()
            losses += [self.step(*batch).clone() for batch in group]
            torch.cuda.synchronize()
            seconds.append((time.perf_counter() - start) / len(group))
        return seconds, [loss.item() for loss in losses]


def train(options):
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    imported = peak_rss_mib()
    trainer = Trainer(options)
    seconds, losses = trainer.run_on_gpu() if trainer.cuda else trainer.run_on_cpu()
    if options.losses:
        with open(options.losses, "w") as f:
            f.writelines(f"{loss:.9g}\n" for loss in losses)
    tokens = trainer.config.batch * trainer.config.tokens
    memory = {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    } if trainer.cuda else {}
    return {
        "model": options.model,
        "device": options.device,
        "dtype": options.dtype,
        "threads": options.threads,
        "step_tokens": tokens,
        "step_ms": [1e3 * s for s in seconds],
        "tokens_per_s": tokens / statistics.median(seconds),
        "peak_rss_mib": peak_rss_mib(),
        "imported_rss_mib": imported,
        **memory,
        "last_loss": losses[-1],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--sdpa", help="of torch.nn.attention.SDPBackend: FLASH_ATTENTION, ...")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--compile", nargs="?", const="default", metavar="MODE",
                        help="default, reduce-overhead, max-autotune")
    parser.add_argument("--init")
    parser.add_argument("--data")
    parser.add_argument("--losses")
    parser.add_argument("--pause", type=int, metavar="N", help="on a CPU: as bench_step's")
    print(json.dumps(train(parser.parse_args())))


if __name__ == "__main__":
    main()
