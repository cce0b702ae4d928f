"""What tests of the trainers over several ranks share: a short run, and comparing two."""
from support import SMALL, checkpoint_bytes, metrics, text

MODEL = [*SMALL, "--steps", "8", "--threads", "1"]
MOE = ["--experts", "4", "--expert-ffn", "16", "--shared-ffn", "16", "--router", "sigmoid"]


def base(folder, out, *args):
    return ["--data", text(folder), "--out", f"{folder}/{out}", *MODEL, *args]


def agree(folder, one, other, tolerance=1e-5):
    """Losses, norms and validation losses of two runs, relative."""
    rows = metrics(f"{folder}/{one}"), metrics(f"{folder}/{other}")
    assert len(rows[0]) == len(rows[1]) > 0
    for a, b in zip(*rows):
        assert a.keys() == b.keys(), (a.keys(), b.keys())
        for key in a.keys() - {"live_bytes", "peak_bytes"}:
            for x, y in zip(*([v] if isinstance(v, (int, float)) else v for v in (a[key], b[key]))):
                allowed = 0 if key in ("step", "lr", "tokens") else tolerance * abs(x)
                assert abs(x - y) <= allowed, (a["step"], key, x, y)


def same_bits(folder, one, other, step=8):
    """Every byte of the files of models and of optimizers."""
    once, twice = (checkpoint_bytes(f"{folder}/{out}", step) for out in (one, other))
    assert once and once == twice, f"{one} and {other} differ: {sorted(once)}, {sorted(twice)}"
