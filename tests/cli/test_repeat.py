"""Equal runs give equal bytes: in a rerun, in two parts, with another number of micro-batches or
threads, with recomputed layers, from a config file. Also: memory is steady after the first steps,
and the numbers that differ between runs, times and energy."""
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

from support import BIN, SMALL, checkpoint_bytes, main, metrics, run, start, text, train


def base(folder, out, *args):
    return ["--data", text(folder), "--out", f"{folder}/{out}", *SMALL, *args]


def same(folder, a, b, step):
    assert metrics(f"{folder}/{a}") == metrics(f"{folder}/{b}"), "metrics differ"
    left, right = checkpoint_bytes(f"{folder}/{a}", step), checkpoint_bytes(f"{folder}/{b}", step)
    assert left and left.keys() == right.keys()
    for name in left:
        assert left[name] == right[name], f"{name} differs"


def repeats(folder):
    for out in ("a", "b"):
        train(*base(folder, out, "--steps", "40"))
    same(folder, "a", "b", 40)
    train(*base(folder, "c", "--steps", "40", "--seed", "4"))
    assert checkpoint_bytes(f"{folder}/c", 40) != checkpoint_bytes(f"{folder}/a", 40)


def resume(folder):
    schedule = ["--schedule", "constant", "--warmup", "5", "--eval-every", "40"]
    for arch in ("gpt2", "llama"):
        more = [*schedule, "--arch", arch]
        train(*base(folder, f"{arch}1", "--steps", "40", *more))
        train(*base(folder, f"{arch}2", "--steps", "20", *more))
        train(*base(folder, f"{arch}2", "--steps", "40", *more, "--resume"))
        whole, parts = metrics(f"{folder}/{arch}1"), metrics(f"{folder}/{arch}2")
        for row in parts[:20]:
            row.pop("val_loss", None)  # the first part evaluated after its last step
        assert whole == parts, "metrics differ"
        once, twice = (checkpoint_bytes(f"{folder}/{arch}{i}", 40) for i in (1, 2))
        assert once and once == twice, "weights or optimizer states differ"
        done = train(*base(folder, f"{arch}2", "--steps", "40", *more, "--resume"))
        assert "already" in done.stdout


def evaluates_in_micro_batches(folder):
    """Losses are summed batch by batch, so their bits depend on the rows per batch."""
    still = ["--steps", "1", "--lr", "1e-30"]  # far below the last bit of any weight
    train(*base(folder, "a", *still, "--batch", "1"))
    train(*base(folder, "b", *still, "--batch", "4", "--micro-batch", "1"))
    train(*base(folder, "c", *still, "--batch", "4"))
    one, micro, whole = (metrics(f"{folder}/{out}")[-1]["val_loss"] for out in "abc")
    assert one == micro and one != whole and abs(one - whole) < 1e-6, (one, micro, whole)


def either_form_of_master_weights(folder):
    """A bf16 run resumed in the same form gives the same bytes, in the other form the same losses
    except for the effect of ties in the weights."""
    in_bf16 = ["--dtype", "bf16", "--schedule", "constant", "--warmup", "5"]
    forms = {form: [*in_bf16, "--master-weights", form] for form in ("f32", "remainder")}
    for form, flags in forms.items():
        train(*base(folder, form, "--steps", "20", *flags))
    for first, then in (("remainder", "remainder"), ("f32", "remainder"), ("remainder", "f32")):
        out = f"{first}-{then}"
        train(*base(folder, out, "--steps", "10", *forms[first]))
        train(*base(folder, out, "--steps", "20", *forms[then], "--resume"))
        if first == then:
            once, twice = (checkpoint_bytes(f"{folder}/{name}", 20) for name in (then, out))
            assert once and once == twice, "weights or optimizer states differ"
        for a, b in zip(metrics(f"{folder}/f32"), metrics(f"{folder}/{out}"), strict=True):
            assert abs(a["loss"] - b["loss"]) < 1e-3 * a["loss"], (out, a, b)


def threads(folder):
    # The in-tree product needs no flag.
    for name, flags, env in (("fixed", ["--deterministic"], {}), ("weft", ["--dim", "96"], {"WEFT_GEMM": "weft"})):
        for n in ("1", "2", "4"):
            train(*base(folder, name + n, "--steps", "8", *flags, "--threads", n), env=env)
        same(folder, name + "1", name + "2", 8)
        same(folder, name + "1", name + "4", 8)


def recompute_changes_no_bit(folder):
    for arch, *more in (["gpt2"], ["llama", "--kv-heads", "1", "--mtp", "2", "--dtype", "bf16"]):
        results = []
        for how in ("none", "selective", "full"):
            out = f"{arch}-{how}"
            train(*base(folder, out, "--steps", "6", "--micro-batch", "2", "--arch", arch, *more,
                        "--recompute", how))
            results.append(([(row["loss"], row["grad_norm"]) for row in metrics(f"{folder}/{out}")],
                            checkpoint_bytes(f"{folder}/{out}", 6)))
        numbers, files = results[0]
        assert len(numbers) == 6 and files
        for how, (other, bytes_of) in zip(("selective", "full"), results[1:]):
            assert other == numbers, f"{arch}: --recompute {how} has other numbers"
            for name in files:
                assert bytes_of[name] == files[name], f"{arch}, --recompute {how}: {name} differs"


def micro_batches_agree(folder):
    train(*base(folder, "whole", "--steps", "5"))
    train(*base(folder, "parts", "--steps", "5", "--micro-batch", "1"))
    for a, b in zip(metrics(f"{folder}/whole"), metrics(f"{folder}/parts")):
        assert abs(a["loss"] - b["loss"]) < 1e-5, (a, b)


def config_file(folder):
    train(*base(folder, "a", "--steps", "4", "--qk-norm", "--lr", "3e-4"))
    printed = run("train_gpt", *base(folder, "b", "--steps", "4", "--qk-norm", "--lr", "3e-4"),
                  "--print-config")
    assert printed.returncode == 0
    config = pathlib.Path(folder) / "run.toml"
    config.write_text(printed.stdout)
    train("--config", config)
    same(folder, "a", "b", 4)
    train("--config", config, "--out", f"{folder}/c", "--lr", "1e-3")
    assert metrics(f"{folder}/c")[-1]["lr"] != metrics(f"{folder}/a")[-1]["lr"], "the flag must win"


def steady_memory(folder):
    train(*base(folder, "a", "--steps", "12"))
    rows = [json.loads(line) for line in open(f"{folder}/a/metrics.jsonl")]
    assert len({row["system_allocs"] for row in rows[1:]}) == 1, [r["system_allocs"] for r in rows]
    assert len({row["live_bytes"] for row in rows[1:]}) == 1


def meta_predicts_the_peak(folder):
    for i, more in enumerate((["--dropout", "0"], ["--arch", "llama", "--qk-norm"],
                              ["--recompute", "full"], ["--recompute", "selective"],
                              ["--micro-batch", "2", "--arch", "llama", "--kv-heads", "1",
                               "--recompute", "full"])):
        for device in ("cpu", "meta"):
            train(*base(folder, f"{device}{i}", "--steps", "3", "--device", device, *more))
        cpu, meta = metrics(f"{folder}/cpu{i}"), metrics(f"{folder}/meta{i}")
        assert meta[0]["loss"] is None
        for a, b in zip(cpu, meta):
            for key in ("peak_bytes", "live_bytes"):
                assert a[key] == b[key], (more, key, a[key], b[key])


def meta_takes_what_no_machine_holds(folder):
    for device in ("meta", "meta:cuda"):
        out = device.replace(":", "-")
        train(*base(folder, out, "--steps", "1", "--device", device, "--dim", "65536", "--heads", "512",
                    "--layers", "48"))
        assert metrics(f"{folder}/{out}")[0]["peak_bytes"] > 1e13


def dry_run(folder):
    done = train(*base(folder, "none", "--steps", "4", "--dry-run"))
    assert "parameters" in done.stdout and "peak memory" in done.stdout
    assert not pathlib.Path(f"{folder}/none").exists()


def generates(folder):
    train(*base(folder, "a", "--steps", "20"))
    for args in (["--temperature", "0"], ["--topk", "5"], ["--seed", "9"]):
        first = run("generate", "--checkpoint", f"{folder}/a", "--prompt", "the cat", "--tokens",
                    "80", *args)
        again = run("generate", "--checkpoint", f"{folder}/a", "--prompt", "the cat", "--tokens",
                    "80", *args)
        assert first.returncode == 0, first.stderr
        assert first.stdout == again.stdout and first.stdout.startswith("the cat")
    # The greedy sample does not depend on how the prompt is processed.
    greedy = run("generate", "--checkpoint", f"{folder}/a", "--prompt", "the cat", "--tokens", "12",
                 "--temperature", "0").stdout.rstrip("\n")
    longer = run("generate", "--checkpoint", f"{folder}/a", "--prompt", greedy[:-4], "--tokens",
                 "4", "--temperature", "0").stdout.rstrip("\n")
    assert longer == greedy, (greedy, longer)


def times_its_steps(folder):
    begin = time.monotonic()
    process = start("train_gpt", f"{folder}/run", text(folder), "--dim", "128", "--seq", "256")
    for _ in range(4):  # one may fall between two steps, which no step counts
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    seconds = time.monotonic() - begin
    rows = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
    before = 0
    for row in rows:
        tokens = row["tokens_per_s"] * row["step_ms"] / 1e3
        assert abs(tokens - (row["tokens"] - before)) < 1e-6 * tokens, row
        before = row["tokens"]
    times = [row["step_ms"] / 1e3 for row in rows]
    assert min(times) > 0 and max(times) > 0.45 and 1.35 < sum(times) < seconds, (times, seconds)


class Meter:
    """Files of a power zone, whose counter moves while it is used in a `with`."""

    def __init__(self, folder):
        self.zone = pathlib.Path(folder) / "intel-rapl:0"
        self.zone.mkdir(parents=True)
        (self.zone / "name").write_text("package-0\n")
        (self.zone / "max_energy_range_uj").write_text("1000000\n")

    def set(self, microjoules):
        (self.zone / "next").write_text(f"{microjoules}\n")
        os.replace(self.zone / "next", self.zone / "energy_uj")

    def move(self):
        value = 0
        while not self.done.is_set():
            value = (value + 1000) % 1000000  # 1 mJ; wraps to 0
            self.set(value)
            time.sleep(0.0005)

    def __enter__(self):
        self.done = threading.Event()
        self.user = threading.Thread(target=self.move)
        self.user.start()

    def __exit__(self, *_):
        self.done.set()
        self.user.join()


def energy_rows(folder, out, zones, *args):
    done = train(*base(folder, out, "--steps", "12", "--eval-every", "4", "--save-every", "3", *args),
                 env={"WEFT_TEST_POWERCAP": str(zones)})
    return [json.loads(line) for line in open(f"{folder}/{out}/metrics.jsonl")], done.stdout


def counts_energy(folder):
    zones = pathlib.Path(folder) / "zones"
    meter = Meter(zones)

    def joules(out):
        return [row.get("joules") for row in energy_rows(folder, out, zones)[0]]

    assert joules("none") == [None] * 12  # a counter without read permission
    meter.set(999999)
    assert joules("still") == [0] * 12
    with meter:
        moving = joules("moving")
    assert all(j >= 0 for j in moving) and 0 < sum(moving) < 1000, moving


def sums_energy_over_ranks(folder):
    """Each rank with a meter of its own counts, whichever rank it is, and the sum is reported."""
    for moving in (0, 1):
        zones = pathlib.Path(folder) / f"zones_{moving}"
        meters = [Meter(zones / f"rank_{rank}") for rank in (0, 1)]
        for meter in meters:
            meter.set(7)
        with meters[moving]:
            rows, printed = energy_rows(folder, f"of_{moving}", zones, "--ranks", "2")
        total = sum(row["joules"] for row in rows)
        assert total > 0, rows
        tokens = rows[0]["tokens"]
        for row in rows:
            rate = row.get("tokens_per_joule")
            assert (rate is None) == (row["joules"] == 0), row
            assert rate is None or abs(rate * row["joules"] - tokens) < 1e-6 * tokens, row
        line = next(line for line in printed.splitlines() if line.startswith("energy"))
        words = line.split()
        assert abs(float(words[1]) - total) < 1e-5 * total and words[2] == "J,", (line, total)
        assert abs(float(words[3]) - 12 * tokens / total) < 1e-3 * 12 * tokens / total, (line, total)
    still = energy_rows(folder, "still", zones, "--ranks", "2")
    assert [row["joules"] for row in still[0]] == [0] * 12 and "\nenergy" not in still[1], still


main([counts_energy, sums_energy_over_ranks, times_its_steps, repeats, resume, evaluates_in_micro_batches,
      either_form_of_master_weights, threads, recompute_changes_no_bit, micro_batches_agree, config_file,
      steady_memory, meta_predicts_the_peak, meta_takes_what_no_machine_holds, dry_run, generates])
