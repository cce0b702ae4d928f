"""Multi-token prediction in the trainer: exact resume, logging, wrong use."""
import pathlib
import re

from support import SMALL, checkpoint_bytes, main, metrics, refused, run, text, train


def base(folder, out, *args):
    return ["--data", text(folder), "--out", f"{folder}/{out}", *SMALL, *args]


def resumes(folder):
    for arch in ("gpt2", "llama"):
        more = ["--arch", arch, "--mtp", "2", "--schedule", "constant", "--warmup", "5"]
        train(*base(folder, f"{arch}1", "--steps", "20", *more))
        train(*base(folder, f"{arch}2", "--steps", "10", *more))
        train(*base(folder, f"{arch}2", "--steps", "20", *more, "--resume"))
        whole, parts = metrics(f"{folder}/{arch}1"), metrics(f"{folder}/{arch}2")
        parts[9].pop("val_loss")  # the first part evaluated after its last step
        assert whole == parts, "metrics differ"
        once, twice = (checkpoint_bytes(f"{folder}/{arch}{i}", 20) for i in (1, 2))
        assert once and once == twice, "weights or optimizer states differ"


def logs_the_loss_whatever_the_interval(folder):
    """M6: every batch is the same and nothing is learnt, so each depth has a constant loss c."""
    path = pathlib.Path(folder) / "same.txt"
    path.write_text("a" * 8000)
    seen = {}
    for i, more in enumerate(([], ["--log-every", "5"], ["--micro-batch", "1"],
                              ["--micro-batch", "2", "--recompute", "full", "--log-every", "5"],
                              ["--recompute", "selective", "--log-every", "5"])):
        done = train("--data", path, "--out", f"{folder}/{i}", *SMALL, "--steps", "10", "--lr", "1e-12",
                     "--dropout", "0", "--mtp", "2", "--log-every", "1", *more)
        rows = metrics(f"{folder}/{i}")
        printed = re.findall(r"loss (\S+)  mtp_1 (\S+)  mtp_2 (\S+)  norm", done.stdout)
        assert len(printed) == (3 if "5" in more else 10), done.stdout
        for line in printed:
            got = [rows[0][key] for key in ("loss", "mtp_1_loss", "mtp_2_loss")]
            assert all(abs(float(a) - b) < 6e-5 for a, b in zip(line, got)), (line, got)
        for row in rows:
            for key in ("loss", "mtp_1_loss", "mtp_2_loss", "mtp_1_acceptance"):
                want = seen.setdefault(key, row[key])
                assert abs(row[key] - want) < 1e-6, (more, row["step"], key, row[key], want)


def micro_batches_and_recompute_agree(folder):
    train(*base(folder, "whole", "--steps", "5", "--mtp", "2"))
    for i, more in enumerate((["--micro-batch", "1"], ["--recompute", "full"],
                              ["--micro-batch", "2", "--recompute", "selective"])):
        train(*base(folder, f"parts{i}", "--steps", "5", "--mtp", "2", *more))
        for a, b in zip(metrics(f"{folder}/whole"), metrics(f"{folder}/parts{i}")):
            for key in ("loss", "grad_norm", "mtp_1_loss", "mtp_2_loss"):
                assert abs(a[key] - b[key]) < 1e-5 * max(1, abs(a[key])), (more, key, a, b)
            for key in ("mtp_1_acceptance", "mtp_2_acceptance"):
                assert abs(a[key] - b[key]) < 0.02, (more, key, a, b)


def weight_zero_is_off(folder):
    train(*base(folder, "off", "--steps", "5"))
    train(*base(folder, "zero", "--steps", "5", "--mtp", "1", "--mtp-weight", "0"))
    assert "val_loss" in metrics(f"{folder}/zero")[-1]
    for a, b in zip(metrics(f"{folder}/off"), metrics(f"{folder}/zero")):
        # The last step's val_loss covers only the main head.
        for key in ("loss", "grad_norm", "val_loss"):
            assert a.get(key) == b.get(key), (key, a, b)
        assert "mtp_1_loss" in b and "mtp_1_loss" not in a


def one_layer_for_all_depths(folder):
    same = ["--mtp", "2", "--mtp-repeat", "--schedule", "constant", "--warmup", "5"]
    train(*base(folder, "a", "--steps", "10", *same))
    train(*base(folder, "b", "--steps", "5", *same))
    train(*base(folder, "b", "--steps", "10", *same, "--resume"))
    once, twice = (checkpoint_bytes(f"{folder}/{out}", 10) for out in "ab")
    assert once and once == twice, "weights or optimizer states differ"
    assert all("mtp_2_loss" in row for row in metrics(f"{folder}/a"))
    refused(run("train_gpt", *base(folder, "a", "--mtp", "2", "--steps", "12", "--resume")), 2,
            "another model", "mtp_repeated true (this run: false)")
    greedy = ["--checkpoint", f"{folder}/a", "--prompt", "the cat", "--tokens", "20",
              "--temperature", "0"]
    plain, fast = run("generate", *greedy), run("generate", *greedy, "--speculative")
    assert fast.returncode == 0 and fast.stdout == plain.stdout, fast


def detached_depths_leave_the_model_alone(folder):
    train(*base(folder, "off", "--steps", "5", "--clip", "0"))
    train(*base(folder, "on", "--steps", "5", "--clip", "0", "--mtp", "1", "--mtp-detach"))
    for a, b in zip(metrics(f"{folder}/off"), metrics(f"{folder}/on")):
        assert a["loss"] == b["loss"] and a["grad_norm"] < b["grad_norm"], (a, b)


def learns(folder):
    train(*base(folder, "a", "--steps", "60", "--lr", "1e-2", "--mtp", "1", "--dropout", "0"))
    rows = metrics(f"{folder}/a")
    assert rows[0]["mtp_1_loss"] > 5.4 and rows[-1]["mtp_1_loss"] < 3.2, rows[-1]
    assert rows[-1]["mtp_1_acceptance"] > 0.15, rows[-1]


def meta_predicts_the_peak(folder):
    for more in (["--arch", "llama"], ["--recompute", "full", "--micro-batch", "2"]):
        for device in ("cpu", "meta"):
            train(*base(folder, device + more[1], "--steps", "3", "--mtp", "2", "--device", device,
                        *more))
        cpu, meta = metrics(f"{folder}/cpu{more[1]}"), metrics(f"{folder}/meta{more[1]}")
        assert meta[0]["mtp_2_loss"] is None and meta[0]["mtp_2_acceptance"] is None
        for a, b in zip(cpu, meta):
            assert a["peak_bytes"] == b["peak_bytes"], (more, a["peak_bytes"], b["peak_bytes"])


def generates_speculatively(folder):
    for arch, depths in (("llama", "1"), ("gpt2", "2")):
        train(*base(folder, arch, "--arch", arch, "--steps", "120", "--lr", "1e-2", "--mtp", depths,
                    "--mtp-weight", "0.3", "--seq", "64"))
        base_args = ["--checkpoint", f"{folder}/{arch}", "--prompt", "the cat", "--tokens", "150"]
        greedy = [*base_args, "--temperature", "0"]
        plain, fast = run("generate", *greedy), run("generate", *greedy, "--speculative")
        assert fast.returncode == 0, fast.stderr
        assert fast.stdout == plain.stdout and len(plain.stdout) == 7 + 150 + 1, fast.stdout
        said = re.fullmatch(r"tokens per forward pass (\S+) \(150 tokens in (\d+) passes, "
                            r"(\d+) of (\d+) drafts\)\n", fast.stderr)
        assert said, fast.stderr
        passes, accepted, drafted = map(int, said.groups()[1:])
        assert passes + accepted == 150 and accepted <= drafted, fast.stderr
        assert float(said[1]) > 1.2, fast.stderr
        drawn = [run("generate", *base_args, "--speculative", "--seed", seed).stdout
                 for seed in ("1", "1", "2")]
        assert drawn[0] == drawn[1] != drawn[2] and drawn[0].startswith("the cat")


def wrong_uses(folder):
    refused(run("train_gpt", *base(folder, "a", "--mtp", "32")), 2,
            "mtp depths must be below seq 32", "got 32")
    refused(run("train_gpt", *base(folder, "a", "--mtp", "-1")), 2, "--mtp", "at least 0", "-1")
    refused(run("train_gpt", *base(folder, "a", "--mtp", "1", "--mtp-weight", "-1")), 2,
            "--mtp-weight", "at least 0")
    for flag in ("--mtp-repeat", "--mtp-detach"):
        refused(run("train_gpt", *base(folder, "a", flag)), 2, f"{flag}: needs --mtp, got 0")
    train(*base(folder, "b", "--steps", "2", "--mtp", "1"))
    refused(run("train_gpt", *base(folder, "b", "--steps", "4", "--resume")), 2, "another model",
            "mtp 1 (this run: 0)")
    train(*base(folder, "c", "--steps", "1", "--mtp", "1", "--pattern", "da"))
    done = run("generate", "--checkpoint", f"{folder}/c", "--speculative")
    refused(done, 2, "every layer must have attention", "pattern 'da'")
    assert done.stdout == "", done.stdout
    # The weight of the MTP loss is not part of the model.
    train(*base(folder, "b", "--steps", "4", "--mtp", "1", "--mtp-weight", "0.3", "--resume"))


main([resumes, logs_the_loss_whatever_the_interval, micro_batches_and_recompute_agree,
      weight_zero_is_off, one_layer_for_all_depths, detached_depths_leave_the_model_alone, learns, meta_predicts_the_peak, generates_speculatively, wrong_uses])
