"""The trainers with ranks as threads: every layout gives the numbers of one rank. test_mpi_ranks.py
tests ranks as processes."""
import pathlib

from support import BIN, interrupt, main, metrics, refused, run, text, train
from support_ranks import MODEL, MOE, agree, base, same_bits


def data_parallel(folder):
    """Dropout, accumulation, ZeRO and uneven evaluation batches give the steps of one rank."""
    for i, more in enumerate(([], ["--arch", "llama", "--mtp", "1", "--eval-every", "3"])):
        train(*base(folder, f"{i}one", *more))
        train(*base(folder, f"{i}two", *more, "--ranks", "2"))
        train(*base(folder, f"{i}four", *more, "--ranks", "4", "--zero"))
        train(*base(folder, f"{i}micro", *more, "--ranks", "2", "--micro-batch", "1"))
        for other in ("two", "four", "micro"):
            agree(folder, f"{i}one", f"{i}{other}")


def tensor_parallel(folder):
    """Shards heads, hidden units, an indivisible vocabulary and tokens."""
    for i, more in enumerate((["--heads", "4", "--vocab", "257"],
                              ["--arch", "llama", "--heads", "4", "--kv-heads", "2", "--mtp", "1"])):
        train(*base(folder, f"{i}one", *more))
        train(*base(folder, f"{i}tp2", *more, "--ranks", "2", "--tp", "2"))
        train(*base(folder, f"{i}sp2", *more, "--ranks", "2", "--tp", "2", "--sp"))
        train(*base(folder, f"{i}ring", *more, "--ranks", "2", "--tp", "2", "--sp", "--tp-overlap",
                    ["ring", "pipeline"][i]))
        train(*base(folder, f"{i}hides", *more, "--ranks", "2", "--tp", "2", "--tp-overlap", "ring"))
        train(*base(folder, f"{i}tp4", *more, "--ranks", "4", "--tp", "4"))
        train(*base(folder, f"{i}both", *more, "--ranks", "4", "--tp", "2", "--sp", "--zero",
                    "--recompute", "full"))
        for other in ("tp2", "hides", "sp2", "ring", "tp4", "both"):
            agree(folder, f"{i}one", f"{i}{other}", 2e-5)


def expert_parallel(folder):
    for i, aux in enumerate((["--aux", "bias"], ["--aux", "seq", "--z-loss", "0.001"])):
        more = [*MOE, *aux, "--mtp", "1"]
        train(*base(folder, f"{i}one", *more), program="train_moe")
        train(*base(folder, f"{i}ep2", *more, "--ranks", "2", "--ep", "2"), program="train_moe")
        train(*base(folder, f"{i}gather", *more, "--ranks", "2", "--ep", "2", "--dispatcher", "all-gather"),
              program="train_moe")
        agree(folder, f"{i}ep2", f"{i}gather", 1e-14)
        train(*base(folder, f"{i}ep2dp4", *more, "--ranks", "4", "--ep", "2", "--zero"),
              program="train_moe")
        train(*base(folder, f"{i}ep4", *more, "--ranks", "4", "--ep", "4"), program="train_moe")
        train(*base(folder, f"{i}tp2ep2", *more, "--ranks", "4", "--tp", "2", "--sp", "--ep", "2",
                    "--zero"), program="train_moe")
        train(*base(folder, f"{i}etp1", *more, "--ranks", "4", "--tp", "2", "--sp", "--ep", "4",
                    "--etp", "1"), program="train_moe")
        for other in ("ep2", "ep2dp4", "ep4", "tp2ep2", "etp1"):
            agree(folder, f"{i}one", f"{i}{other}", 2e-5)


def buckets_of_any_size(folder):
    """The bucket size changes no bit of losses and weights, and a checkpoint does not depend on
    it."""
    def exported(out):
        file = f"{folder}/{out}.safetensors"
        assert run("generate", "--checkpoint", f"{folder}/{out}", "--export", file).returncode == 0
        return pathlib.Path(file).read_bytes()

    # Without clipping, because the norm is summed bucket by bucket.
    plain = ["--clip", "0", "--schedule", "constant", "--eval-every", "4"]
    for i, layout in enumerate((["--ranks", "2"], ["--ranks", "4", "--tp", "2", "--sp", "--zero"])):
        default = f"{i}default"
        train(*base(folder, default, *plain, *layout))
        for size in (1, 3000):
            train(*base(folder, f"{i}by{size}", *plain, *layout, "--bucket-size", size))
        train(*base(folder, f"{i}changed", *plain, *layout, "--steps", "4", "--bucket-size", "1"))
        train(*base(folder, f"{i}changed", *plain, *layout, "--resume"))
        for other in (f"{i}by1", f"{i}by3000", f"{i}changed"):
            agree(folder, default, other, 1e-14)
            losses = [[row["loss"] for row in metrics(f"{folder}/{out}")] for out in (default, other)]
            assert losses[0] == losses[1] and exported(default) == exported(other), other


def gradients_summed_in_bf16(folder):
    """Other numbers, near those of f32 sums."""
    half = ["--ranks", "2", "--dtype", "bf16", "--micro-batch", "1"]
    train(*base(folder, "wide", *half))
    train(*base(folder, "narrow", *half, "--grad-reduce", "bf16", "--zero"))
    agree(folder, "wide", "narrow", 0.02)
    wide, narrow = ([row["grad_norm"] for row in metrics(f"{folder}/{out}")] for out in ("wide", "narrow"))
    assert wide != narrow, wide


def any_number_of_lanes(folder):
    """Queues run beside each other and change no bit."""
    for name, program, more in (
            ("dense", "train_gpt", ["--tp", "2", "--sp", "--zero", "--bucket-size", "2000"]),
            ("moe", "train_moe", [*MOE, "--ep", "2", "--tp", "2", "--sp", "--micro-batch", "1"])):
        for lanes in (1, 2, 3):
            train(*base(folder, f"{name}{lanes}", *more, "--ranks", "4", "--steps", "4", "--lanes", lanes),
                  program=program)
        for lanes in (2, 3):
            agree(folder, f"{name}1", f"{name}{lanes}", 0)
            same_bits(folder, f"{name}1", f"{name}{lanes}", 4)
    data = ["--data", text(folder), "--out", f"{folder}/never"]
    refused(run("train_gpt", *data, "--lanes", "0"), 2, "--lanes: must be at least 1, got 0")
    refused(run("train_gpt", *data, "--lanes", "4"), 2, "--lanes: must be at most 3, got 4")


def resumes_in_any_layout(folder):
    """X2: half of the steps in one layout, half in another; the same layout gives the same bits."""
    same = [*MOE, "--aux", "bias", "--mtp", "1", "--schedule", "constant", "--warmup", "2"]
    layouts = {"one": [], "ep2": ["--ranks", "2", "--ep", "2"],
               "zero": ["--ranks", "4", "--tp", "2", "--sp", "--ep", "2", "--zero"]}
    for name, layout in layouts.items():
        train(*base(folder, f"{name}whole", *same, *layout), program="train_moe")
        train(*base(folder, name, *same, *layout, "--steps", "4"), program="train_moe")
        train(*base(folder, name, *same, *layout, "--resume"), program="train_moe")
        same_bits(folder, f"{name}whole", name)
    for start, end in (("ep2", "zero"), ("zero", "one"), ("one", "ep2"), ("zero", "ep2")):
        out = f"{start}_{end}"
        train(*base(folder, out, *same, *layouts[start], "--steps", "4"), program="train_moe")
        train(*base(folder, out, *same, *layouts[end], "--resume"), program="train_moe")
        rows = metrics(f"{folder}/onewhole"), metrics(f"{folder}/{out}")
        assert len(rows[0]) == len(rows[1]) == 8, out
        for a, b in zip(*rows):
            assert abs(a["loss"] - b["loss"]) < 2e-5 * a["loss"], (out, a, b)
    # The state of another optimizer or dtype is refused.
    for layout in ([], ["--ranks", "2"], ["--ranks", "2", "--zero"]):
        done = run("train_moe", *base(folder, "onewhole", *same, *layout, "--steps", "9", "--resume",
                                      "--optimizer", "sgd"))
        refused(done, 2, "--optimizer: must be adamw as in the run that", "got sgd")
    plain = run("generate", "--checkpoint", f"{folder}/one", "--prompt", "the", "--tokens", "8")
    parts = run("generate", "--checkpoint", f"{folder}/zero_one", "--prompt", "the", "--tokens", "8")
    assert plain.returncode == parts.returncode == 0 and plain.stdout == parts.stdout


def whole_models(folder):
    """A file of all weights can be written from any layout and loaded into any."""
    train(*base(folder, "two", *MOE, "--ranks", "2", "--ep", "2"), program="train_moe")
    file = f"{folder}/whole.safetensors"
    done = run("generate", "--checkpoint", f"{folder}/two", "--export", file)
    assert done.returncode == 0 and file in done.stdout, done
    more = [*MOE, "--weights", file, "--seed", "9"]
    train(*base(folder, "on1", *more), program="train_moe")
    train(*base(folder, "on4", *more, "--ranks", "4", "--tp", "2", "--sp", "--tp-overlap", "ring", "--ep",
                "4", "--etp", "1", "--zero"), program="train_moe")
    agree(folder, "on1", "on4", 2e-5)
    # Training continues from the loaded weights.
    first = metrics(f"{folder}/two")[0]["loss"], metrics(f"{folder}/on1")[0]["loss"]
    assert first[1] < first[0] - 0.1, first
    refused(run("train_gpt", *base(folder, "other", "--weights", file)), 2, "load_state_dict")
    refused(run("train_gpt", *base(folder, "none", "--weights", "nowhere")), 1, "nowhere")


def stops_together(folder):
    interrupt("train_gpt", f"{folder}/stopped", text(folder), "--ranks", "2", "--threads", "1")
    done = run("train_gpt", *base(folder, "nan", "--ranks", "2"), env={"WEFT_TEST_INJECT_NAN": "5"})
    refused(done, 3, "step 5: parameter", "of rank 0 is not finite")
    assert metrics(f"{folder}/nan")[-1]["step"] == 4


def wrong_uses(folder):
    data = ["--data", text(folder), "--out", f"{folder}/never", *MODEL]
    refused(run("train_gpt", *data, "--ranks", "3", "--dp", "2"), 2, "dp 2", "3")
    for flag in ("--ranks", "--rank", "--dp", "--tp", "--ep", "--etp"):  # not truncated to 32 bits
        refused(run("train_gpt", *data, "--ranks", "2", flag, 2**32 + 2), 2,
                f"{flag}: must be at most 1000000, got 4294967298")
    refused(run("train_gpt", *data, "--device", "meta", "--dp", "65536", "--tp", "65536"), 2,
            "--dp: with --tp must be at most 1000000 ranks, got 65536 x 65536")
    refused(run("train_gpt", *data, "--dp", "2"), 2, "--ranks: one rank cannot share work among",
            "--dp 2")
    refused(run("train_gpt", *data, "--ranks", "3"), 2, "--batch: must be a multiple of dp 3, got 4")
    refused(run("train_gpt", *data, "--ranks", "2", "--micro-batch", "3"), 2, "--micro-batch")
    refused(run("train_gpt", *data, "--sp"), 2, "--sp: needs --tp of at least 2, got 1")
    refused(run("train_gpt", *data, "--ep", "2"), 2, "--ep: needs --experts")
    refused(run("train_gpt", *data, "--rank", "1"), 2, "--rank: needs --device meta, got cpu")
    refused(run("train_gpt", *data, "--ranks", "2", "--tp-overlap", "ring"), 2,
            "--tp-overlap: needs --tp of at least 2, got 1")
    refused(run("train_gpt", *data, "--grad-reduce", "bf16"), 2,
            "--grad-reduce: bf16 needs several ranks, got 1")
    for seconds in ("0", "1e12"):
        refused(run("train_gpt", *data, "--timeout", seconds), 2,
                "--timeout: must be above 0 and at most 100000000, got " + seconds.replace("e", "e+"))
    refused(run("train_gpt", *data, "--bucket-size", "-1"), 2, "--bucket-size: must be at least 0, got -1")
    refused(run("train_gpt", *data, "--ranks", "-1"), 2, "--ranks: must be at least 0, got -1")
    refused(run("train_moe", *data, "--ranks", "3", "--batch", "3", "--ep", "3", "--experts", "8"), 2,
            "8", "3")
    refused(run("train_gpt", *data, "--backend", "gloo"), 2, "--backend: must be one of")
    refused(run("train_gpt", *data, "--backend", "fake"), 2, "--backend: fake needs --device meta")
    pathlib.Path(f"{folder}/never").mkdir()
    pathlib.Path(f"{folder}/never/metrics.jsonl").write_text("")
    refused(run("train_gpt", *data, "--ranks", "2"), 2, "--out:", "already holds a run")


def compares_two_runs(folder):
    """examples/loss_compare on runs that agree, have the same bits, or differ."""
    def compare(out, one, other, *limits):
        command = ["--data", text(folder), *MODEL]
        return run("loss_compare", "--out", f"{folder}/{out}", *limits,
                   "--", BIN / "train_gpt", *command, *one, "--", BIN / "train_gpt", *command, *other)

    done = compare("layouts", [], ["--ranks", "4", "--dp", "2", "--tp", "2"])
    assert done.returncode == 0 and "DIFFER" not in done.stdout, done
    exact = ["--loss", "0", "--norm", "0", "--weights", "0"]
    done = compare("bits", ["--ranks", "2"], ["--ranks", "2", "--zero"], *exact)
    assert done.returncode == 0, done
    done = compare("seeds", [], ["--seed", "4"])
    lines = [line for line in done.stdout.splitlines() if "limit" in line]
    assert done.returncode == 1 and len(lines) == 4, done
    assert all("DIFFER" in line for line in lines), lines
    done = compare("seeds", [], [])
    refused(done, 2, "--out:", "exists")
    refused(run("loss_compare", "--", "true"), 2, "two command lines must follow")
    refused(compare("steps", [], ["--steps", "4"]), 2, "same number of steps, got 8 and 4")
    done = run("loss_compare", "--out", f"{folder}/none", "--", "/nowhere", "--", "true")
    assert done.returncode == 1 and "cannot run /nowhere" in done.stderr, done


def plans_on_meta(folder):
    plan = base(folder, "plan", "--device", "meta", "--dp", "4", "--rank", "3")
    done = run("train_gpt", *plan)
    assert done.returncode == 0 and "peak" in done.stdout, done
    # In a shell started by a launcher.
    shell = base(folder, "shell", *plan[4:], "--backend", "fake")
    assert run("train_gpt", *shell, env={"PMIX_RANK": "0"}).returncode == 0


if __name__ == "__main__":
    main([data_parallel, tensor_parallel, expert_parallel, buckets_of_any_size,
          gradients_summed_in_bf16, any_number_of_lanes, resumes_in_any_layout, whole_models, stops_together, wrong_uses, compares_two_runs, plans_on_meta])
