"""Shared by the tests of trainers over several ranks: a short run, and comparing two runs."""
from support import SMALL, checkpoint_bytes, metrics, text

MODEL = [*SMALL, "--steps", "8", "--threads", "1"]
MOE = ["--experts", "4", "--expert-ffn", "16", "--shared-ffn", "16", "--router", "sigmoid"]


def base(folder, out, *args):
    return ["--data", text(folder), "--out", f"{folder}/{out}", *MODEL, *args]


def agree(folder, one, other, tolerance=1e-5):
    """Compares losses, norms and validation losses of two runs with a relative tolerance."""
    rows = metrics(f"{folder}/{one}"), metrics(f"{folder}/{other}")
    assert len(rows[0]) == len(rows[1]) > 0
    for a, b in zip(*rows):
        assert a.keys() == b.keys(), (a.keys(), b.keys())
        for key in a.keys() - {"live_bytes", "peak_bytes"}:
            for x, y in zip(*([v] if isinstance(v, (int, float)) else v for v in (a[key], b[key]))):
                allowed = 0 if key in ("step", "lr", "tokens") else tolerance * abs(x)
                assert abs(x - y) <= allowed, (a["step"], key, x, y)


def same_bits(folder, one, other, step=8):
    """Compares every byte of the model and optimizer files."""
    once, twice = (checkpoint_bytes(f"{folder}/{out}", step) for out in (one, other))
    assert once and once == twice, f"{one} and {other} differ: {sorted(once)}, {sorted(twice)}"
