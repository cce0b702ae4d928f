"""--recompute by parts and --offload: the same bits with the memory that was predicted, in every
layout; what they save; a folder that is missing or full."""
import os
import pathlib
import re
import resource
import signal
import subprocess

from support import BIN, SMALL, checkpoint_bytes, main, metrics, peak_line, refused, run, text, train


def base(folder, out, *args):
    return ["--data", text(folder), "--out", f"{folder}/{out}", *SMALL, "--steps", "4", *args]


def numbers(rows):
    memory = {"live_bytes", "peak_bytes"}
    return [{k: v for k, v in row.items() if k not in memory} for row in rows]


def peak(folder, out):
    return max(row["peak_bytes"] for row in metrics(f"{folder}/{out}"))


def same_run(folder, name, layout, flags, program="train_gpt"):
    """Returns the peak with and without `flags`, which change no number."""
    train(*base(folder, f"{name}_0", *layout), program=program)
    done = train(*base(folder, f"{name}_1", *layout, *flags), program=program)
    assert numbers(metrics(f"{folder}/{name}_0")) == numbers(metrics(f"{folder}/{name}_1")), flags
    plain, other = (checkpoint_bytes(f"{folder}/{name}_{i}", 4) for i in (0, 1))
    assert plain and plain == other, flags
    assert peak_line(peak(folder, f"{name}_1")) in done.stdout, (flags, done.stdout)
    return peak(folder, f"{name}_0"), peak(folder, f"{name}_1")


def recompute(folder):
    overlap = ["--ranks", "2", "--tp", "2", "--sp", "--tp-overlap", "ring"]
    for i, (layout, parts) in enumerate((
            ([], "norms,mlp"), (["--arch", "llama"], "selective,attention"),
            (["--ranks", "2", "--tp", "2", "--sp"], "norms,gathered"),
            (["--ranks", "2", "--tp", "2", "--sp", "--arch", "llama"], "gathered"),
            (overlap, "selective"), ([*overlap, "--arch", "llama"], "mlp,attention"))):
        before, after = same_run(folder, f"r{i}", layout, ["--recompute", parts])
        assert after < before, (layout, parts, before, after)
    same_run(folder, "moe", ["--experts", "4", "--capacity", "1.5"], ["--recompute", "selective"], "train_moe")
    one, all_of_them = (same_run(folder, f"b{i}", [], ["--recompute", "full", *more])[1]
                        for i, more in enumerate((["--recompute-layers", "1"], [])))
    assert all_of_them < one, (all_of_them, one)


def what_parts_save(folder):
    """--dry-run says what a run then saves."""
    done = train(*base(folder, "dry", "--dry-run"))
    said = dict(re.findall(r"recompute (\w+) +saves ([\d,]+) bytes", done.stdout))
    assert {"norms", "attention", "mlp", "selective", "full"} <= said.keys(), done.stdout
    for part in ("norms", "full"):
        before, after = same_run(folder, part, [], ["--recompute", part])
        assert int(said[part].replace(",", "")) == before - after, (part, said, before, after)


def offload(folder):
    away = ["--offload", "activations", "--offload-folder", folder, "--offload-least", "1000"]
    for i, (layout, flags) in enumerate((
            ([], away), ([], [*away, "--offload-fraction", "0.5", "--recompute", "norms"]),
            (["--micro-batch", "2"], away), (["--dtype", "fp8"], away),
            (["--dtype", "fp8", "--fp8-recipe", "block"], [*away, "--recompute", "mlp"]), (["--ranks", "2", "--tp", "2", "--sp"], away))):
        before, after = same_run(folder, f"o{i}", layout, flags)
        assert after < before, (layout, before, after)
    states = ["--offload", "states", "--offload-folder", folder]
    for i, layout in enumerate(([], ["--ranks", "2", "--zero", "--dtype", "bf16"])):
        before, after = same_run(folder, f"s{i}", layout, states)
        assert after < before, (layout, before, after)
    assert not [p for p in pathlib.Path(folder).iterdir() if p.name.startswith("offload")]


def resumes(folder):
    away = ["--offload", "activations,states", "--offload-folder", folder]
    more = ["--schedule", "constant", "--warmup", "1"]
    train(*base(folder, "whole", *more))
    train(*base(folder, "parts", *more, *away, "--steps", "2"))
    train("--out", f"{folder}/parts", "--resume", "--steps", "4", *away)
    assert checkpoint_bytes(f"{folder}/whole", 4) == checkpoint_bytes(f"{folder}/parts", 4)


def full_disk(folder):
    """A limit on the size of files stands for a full disk."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (450_000, 450_000))
    train(*base(folder, "plain"))
    args = base(folder, "full", "--offload", "activations,states", "--offload-folder", folder,
                "--offload-least", "1000")
    done = subprocess.run([str(BIN / "train_gpt"), *args], capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "offload: no room" in line]
    assert len(lines) == 1 and "File too large; the rest stays in memory" in lines[0], done.stderr
    assert numbers(metrics(f"{folder}/plain")) == numbers(metrics(f"{folder}/full"))
    assert checkpoint_bytes(f"{folder}/plain", 4) == checkpoint_bytes(f"{folder}/full", 4)


def wrong_use(folder):
    on = ["--offload", "activations"]
    for flags, said in ((on, "--offload: on the cpu needs --offload-folder"),
                        ([*on, "--offload-folder", f"{folder}/nowhere"], "--offload-folder: must be an existing "
                         f"folder that can be written, got '{folder}/nowhere'"),
                        ([*on, "--offload-fraction", "2"], "--offload-fraction: must be at most 1, got 2"),
                        (["--offload-folder", folder], "--offload-folder: needs --offload, got none"),
                        (["--offload", "weights"], "--offload: must be one of none, activations, states, got "
                         "'weights'")):
        refused(run("train_gpt", *base(folder, "out"), *flags), 2, said)
    assert not os.path.exists(f"{folder}/out")


main([recompute, what_parts_save, offload, resumes, full_disk, wrong_use])
