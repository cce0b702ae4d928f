"""The trainers with ranks as processes give the bits of ranks as threads."""
import fcntl
import pathlib

from support import BIN, main, metrics, text, train
from support_mpi import run_ranks
from support_ranks import MODEL, MOE, base, same_bits

# All kinds of parallelism at once.
ALL = [*MOE, "--aux", "bias", "--mtp", "1", "--tp", "2", "--sp", "--ep", "2", "--zero"]


def launch(ranks, program, *args):
    done = run_ranks(ranks, BIN / program, *args)
    assert done.returncode == 0, (program, args, done.stderr)


def backends_have_the_same_bits(folder):
    layouts = ((2, "train_gpt", []), (2, "train_moe", [*MOE, "--ep", "2"]),
               (4, "train_gpt", ["--dp", "2", "--tp", "2", "--sp"]), (4, "train_moe", ALL))
    for i, (ranks, program, more) in enumerate(layouts):
        train(*base(folder, f"{i}threads", *more, "--ranks", ranks), program=program)
        train(*base(folder, f"{i}again", *more, "--ranks", ranks), program=program)
        launch(ranks, program, *base(folder, f"{i}mpi", *more))
        same_bits(folder, f"{i}threads", f"{i}again")
        same_bits(folder, f"{i}threads", f"{i}mpi")
        rows = metrics(f"{folder}/{i}threads"), metrics(f"{folder}/{i}mpi")
        assert len(rows[0]) == len(rows[1]) == 8
        for a, b in zip(*rows):
            assert a["loss"] == b["loss"] and a["grad_norm"] == b["grad_norm"], (a, b)


def resumes(folder):
    """Half of the steps, then the other half in new processes or threads, gives the same bits."""
    more = [*ALL, "--schedule", "constant", "--warmup", "2"]
    train(*base(folder, "whole", *more, "--ranks", "4"), program="train_moe")
    for out in ("mpi", "threads"):
        launch(4, "train_moe", *base(folder, out, *more, "--steps", "4"))
    launch(4, "train_moe", *base(folder, "mpi", *more, "--resume"))
    train(*base(folder, "threads", *more, "--ranks", "4", "--resume"), program="train_moe")
    for out in ("mpi", "threads"):
        same_bits(folder, "whole", out)
        assert [row["step"] for row in metrics(f"{folder}/{out}")] == list(range(1, 9))


def stops_together(folder):
    done = run_ranks(2, "bash", "-c", "[ $OMPI_COMM_WORLD_RANK = 0 ] || export "
                     f"WEFT_TEST_INJECT_NAN=3; exec {BIN}/train_gpt \"$@\"", "bash",
                     *base(folder, "nan"))
    assert done.returncode == 3, done
    assert "step 3: parameter embed.weight of rank 1 is not finite" in done.stderr, done.stderr


def wrong_uses(folder):
    data = ["--data", text(folder), "--out", f"{folder}/never", *MODEL]
    pathlib.Path(f"{folder}/never").mkdir()
    pathlib.Path(f"{folder}/never/metrics.jsonl").write_text("")
    done = run_ranks(2, BIN / "train_gpt", *data)
    assert done.returncode == 2 and done.stderr.count("already holds a run") == 1, done
    assert not pathlib.Path(f"{folder}/never/flight").exists()
    with open(f"{folder}/never/lock", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        done = run_ranks(2, BIN / "train_gpt", *data, "--resume")
    assert done.returncode == 2 and done.stderr.count("is in use by another process") == 1, done
    done = run_ranks(2, BIN / "train_gpt", *data, "--batch", "3")
    assert done.returncode == 2 and done.stderr.count("train_gpt:") == 1, done
    assert "--batch: must be a multiple of dp 2, got 3" in done.stderr, done
    done = run_ranks(2, BIN / "train_gpt", *base(folder, "plan", "--device", "meta"))
    assert done.returncode == 2 and done.stderr.count("train_gpt:") == 1, done
    assert "--device: meta plans for any number of ranks in one process" in done.stderr, done
    assert not pathlib.Path(folder, "plan").exists()
    done = run_ranks(2, BIN / "train_gpt", *base(folder, "each", "--backend", "thread"))
    assert done.returncode == 2 and done.stderr.count("train_gpt:") == 1, done
    assert "--backend: thread runs all ranks in one process, and here are 2, each" in done.stderr, done
    assert not pathlib.Path(folder, "each").exists()
    # One flag that changes no shapes, and one that would give the ranks different groups.
    for i, flag in enumerate(("--seed $OMPI_COMM_WORLD_RANK",
                              "--tp $((OMPI_COMM_WORLD_RANK + 1))")):
        done = run_ranks(2, "bash", "-c", f"exec {BIN}/train_gpt \"$@\" {flag}", "bash",
                         *base(folder, f"differ{i}"))
        assert done.returncode == 2 and "same flags and config" in done.stderr, (flag, done)


if __name__ == "__main__":
    main([backends_have_the_same_bits, resumes, stops_together, wrong_uses])
