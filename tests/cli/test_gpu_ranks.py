"""Ranks of the trainer on emulated GPUs: threads that share one, threads with one each over an
emulated NCCL, processes over MPI and TCP. The losses equal one rank's on the CPU; a rerun and a resume give
the same bits."""
import json

from support import SMALL, BIN, checkpoint_bytes, interrupt, main, metrics, peak_line, refused, run, text, train
from support_mpi import run_ranks
from support_tcp import launch

GPU = "train_gpt_emulated"
STEPS = 4
MODEL = [*SMALL, "--layers", "1", "--vocab", "257", "--threads", "1", "--steps", STEPS, "--eval-every", "2",
         "--schedule", "constant", "--warmup", "2"]
MOE = ["--arch", "llama", "--experts", "4", "--expert-ffn", "16", "--shared-ffn", "16", "--mtp", "1",
       "--router", "sigmoid", "--aux", "bias"]
TWO = ["--ranks", "2", "--device", "cuda"]
LAYOUTS = {"dp2": (["--arch", "gpt2", "--micro-batch", "1"], []),
           "tp2": (["--arch", "llama"], ["--tp", "2", "--sp"]),
           "zero": (["--arch", "gpt2"], ["--zero"]),
           "ep2": (MOE, ["--ep", "2"])}


def base(folder, out, *args):
    return ["--data", text(folder), "--out", f"{folder}/{out}", *MODEL, *args]


def close(folder, got, want):
    """Compares all numbers of two runs except memory, with the tolerance of test_gpu.py."""
    rows = metrics(f"{folder}/{got}"), metrics(f"{folder}/{want}")
    assert len(rows[0]) == len(rows[1]) == STEPS
    for a, b in zip(*rows):
        assert a.keys() == b.keys(), (a.keys(), b.keys())
        for key in a.keys() - {"live_bytes", "peak_bytes"}:
            for x, y in zip(*([v] if isinstance(v, (int, float)) else v for v in (a[key], b[key]))):
                limit = 0.02 if key.endswith("acceptance") else 1e-5 * abs(y)
                assert abs(x - y) <= limit, (got, a["step"], key, x, y)


def same_bits(folder, one, other):
    """Compares all numbers except memory, and the last checkpoint."""
    rows = [[{k: v for k, v in row.items() if not k.endswith("_bytes")}
             for row in metrics(f"{folder}/{out}")] for out in (one, other)]
    assert len(rows[0]) == STEPS and rows[0] == rows[1], (one, other)
    once, twice = (checkpoint_bytes(f"{folder}/{out}", STEPS) for out in (one, other))
    assert once and once == twice, (one, other, sorted(once), sorted(twice))


def threads_on_one_gpu(folder):
    for name, (model, layout) in LAYOUTS.items():
        train(*base(folder, f"{name}-cpu", *model))
        gpu = [*model, *layout, *TWO]
        train(*base(folder, name, *gpu), program=GPU)
        close(folder, name, f"{name}-cpu")
        # A rerun that is stopped halfway and resumed.
        train(*base(folder, f"{name}-parts", *gpu, "--steps", STEPS // 2), program=GPU)
        train(*base(folder, f"{name}-parts", *gpu, "--resume"), program=GPU)
        same_bits(folder, name, f"{name}-parts")


def fp8_weights(folder):
    """With --zero the ranks of a GPU share codes of weights in place of bf16: the same bits."""
    both = [*MOE, *TWO, "--dtype", "fp8", "--seq", "32", "--capacity", "1", "--zero"]
    for ep in ("1", "2"):
        train(*base(folder, f"plain{ep}", *both, "--ep", ep), program=GPU)
        done = train(*base(folder, f"alone{ep}", *both, "--ep", ep, "--fp8-weights"), program=GPU)
        rows = [metrics(f"{folder}/{out}{ep}") for out in ("alone", "plain")]
        assert [row["loss"] for row in rows[0]] == [row["loss"] for row in rows[1]], ep
        assert peak_line(rows[0][-1]["peak_bytes"]) in done.stdout, done.stdout
        assert rows[0][-1]["peak_bytes"] < rows[1][-1]["peak_bytes"]


def backends_on_gpus(folder):
    """One GPU per rank: over the emulated NCCL, which adds in rank order like the other backends,
    and over MPI through the host. The bits equal those of threads that share one GPU."""
    for name in ("zero", "ep2"):
        model, layout = LAYOUTS[name]
        same_args = [*model, *layout]
        train(*base(folder, f"{name}-thread", *same_args, *TWO), program=GPU)
        train(*base(folder, f"{name}-nccl", *same_args, *TWO, "--backend", "nccl"), program=GPU)
        for backend in ("auto", "mpi"):  # auto: NCCL, bootstrapped over MPI
            done = run_ranks(2, BIN / GPU, *base(folder, f"{name}-{backend}", *same_args, "--device", "cuda",
                                                 "--backend", backend))
            assert done.returncode == 0, done.stderr
        for backend in ("nccl", "auto", "mpi"):
            same_bits(folder, f"{name}-thread", f"{name}-{backend}")
    done = launch(2, BIN / GPU, *base(folder, "zero-tcp", *LAYOUTS["zero"][0], "--zero", "--device", "cuda"))
    assert done.returncode == 0, done.stderr  # NCCL, bootstrapped over TCP
    same_bits(folder, "zero-thread", "zero-tcp")


def sharded_weights(folder):
    """--fsdp: one rank's losses on the CPU, those of --zero bit for bit, and over NCCL the bits of threads."""
    model = LAYOUTS["zero"][0]
    train(*base(folder, "fsdp-cpu", *model))
    train(*base(folder, "fsdp-zero", *model, "--zero", *TWO), program=GPU)
    for backend in ("thread", "nccl"):
        train(*base(folder, f"fsdp-{backend}", *model, "--fsdp", *TWO, "--backend", backend), program=GPU)
    close(folder, "fsdp-thread", "fsdp-cpu")
    same_bits(folder, "fsdp-thread", "fsdp-nccl")
    losses = [[row["loss"] for row in metrics(f"{folder}/{out}")] for out in ("fsdp-thread", "fsdp-zero")]
    assert losses[0] == losses[1], losses


def memory(folder):
    """The planned peak equals the rank's, and a steady step allocates no device memory."""
    for name in ("dp2", "zero"):
        model, layout = LAYOUTS[name]
        done = train(*base(folder, name, *model, *layout, *TWO, "--eval-every", "0", "--steps", "6"),
                     program=GPU)
        with open(f"{folder}/{name}/metrics.jsonl") as lines:
            rows = [json.loads(line) for line in lines]
        planned = [line for line in done.stdout.splitlines() if line.startswith("peak memory")]
        assert planned == [peak_line(rows[1]["peak_bytes"])], (
            planned, [row["peak_bytes"] for row in rows])
        # The other rank may already evaluate when the last row is written.
        allocations = [row["system_allocs"] for row in rows][2:-1]
        assert len(set(allocations)) == 1, allocations


def stops_together(folder):
    interrupt(GPU, f"{folder}/stopped", text(folder), *TWO, "--threads", "1")
    for backend in ("thread", "nccl"):
        out = f"nan-{backend}"
        done = run(GPU, *base(folder, out, *TWO, "--backend", backend), env={"WEFT_TEST_INJECT_NAN": "3"})
        refused(done, 3, "step 3: parameter", "of rank 0 is not finite", "checkpoints are as before")
        assert metrics(f"{folder}/{out}")[-1]["step"] == 2


def wrong_uses(folder):
    refused(run(GPU, *base(folder, "a", *TWO, "--graph")), 2, "--graph: does not exist yet for several")
    refused(run(GPU, *base(folder, "a", *TWO, "--ranks", "17")), 2, "--ranks: must be at most 16 on one GPU")
    refused(run(GPU, *base(folder, "a", *TWO, "--backend", "nccl", "--device", "cpu")), 2,
            "--backend: nccl needs --device cuda", "got cpu")
    refused(run(GPU, *base(folder, "a", *TWO, "--backend", "nccl"), env={"WEFT_EMU_DEVICES": "1"}), 2,
            "ranks 0 and 1 would share a GPU")
    refused(run(GPU, *base(folder, "a", *TWO, "--backend", "nccl", "--device", "cuda:1")), 2,
            "--device: must be cuda over NCCL", "got cuda:1")
    for backend in ("auto", "nccl"):
        done = run_ranks(2, "env", "WEFT_EMU_DEVICES=1", BIN / GPU,
                         *base(folder, "a", "--device", "cuda", "--backend", backend))
        assert done.returncode == 2 and done.stderr.count("train_gpt:") == 1, done
        assert "nccl: ranks 0 and 1 would share a GPU" in done.stderr, done
    done = run_ranks(2, BIN / GPU, *base(folder, "a", "--device", "cuda", "--backend", "mpi", "--graph"))
    assert done.returncode == 2 and "--graph: does not exist yet" in done.stderr, done


main([threads_on_one_gpu, fp8_weights, backends_on_gpus, sharded_weights, memory, stops_together, wrong_uses])
