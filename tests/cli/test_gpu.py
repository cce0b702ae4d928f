"""The trainer on an emulated GPU: the CPU's losses, bitwise resume, and the error on a machine
without a GPU."""
import json

from support import SMALL, checkpoint_bytes, interrupt, main, metrics, peak_line, refused, run, text, train

GPU = "train_gpt_emulated"
STEPS = 12


def base(folder, out, *args, steps=STEPS):
    return ["--data", text(folder), "--out", f"{folder}/{out}", "--steps", steps, *SMALL, *args]


def close(a, b, tolerance):
    assert len(a) == len(b) == STEPS
    for x, y in zip(a, b):
        for key in ("loss", "grad_norm"):
            assert abs(x[key] - y[key]) <= tolerance * abs(y[key]), (x["step"], key, x[key], y[key])


def trains_like_the_cpu(folder):
    for name, model in (("gpt2", ["--arch", "gpt2"]), ("llama", ["--arch", "llama"]),
                        ("hybrid", ["--arch", "llama", "--pattern", "da"]),
                        ("mla", ["--arch", "llama", "--attention", "mla", "--v-head", "24"])):
        train(*base(folder, f"cpu-{name}", *model))
        train(*base(folder, f"gpu-{name}", *model, "--device", "cuda"), program=GPU)
        close(metrics(f"{folder}/gpu-{name}"), metrics(f"{folder}/cpu-{name}"), 1e-5)


def trains_in_bf16(folder):
    train(*base(folder, "cpu"))
    train(*base(folder, "gpu", "--device", "cuda", "--dtype", "bf16"), program=GPU)
    losses = [[row["loss"] for row in metrics(f"{folder}/{out}")] for out in ("gpu", "cpu")]
    for got, want in zip(*losses):
        assert abs(got - want) <= 1e-2 * want, (got, want)


def resumes(folder):
    gpu = ["--device", "cuda:1", "--schedule", "constant", "--warmup", "5"]
    train(*base(folder, "whole", *gpu), program=GPU)
    train(*base(folder, "parts", *gpu, steps=STEPS // 2), program=GPU)
    train(*base(folder, "parts", *gpu, "--resume"), program=GPU)
    once, twice = (checkpoint_bytes(f"{folder}/{out}", STEPS) for out in ("whole", "parts"))
    assert once and once == twice, "weights or optimizer states differ"


def steady_memory(folder):
    train(*base(folder, "run", "--device", "cuda"), program=GPU)
    with open(f"{folder}/run/metrics.jsonl") as lines:
        allocations = [json.loads(line)["system_allocs"] for line in lines]
    assert allocations[3] == allocations[-1], allocations


def not_finite(folder):
    """The host reads the GPU's numbers a step late; the run still stops and keeps its
    checkpoints."""
    done = run(GPU, *base(folder, "run", "--device", "cuda", "--save-every", "4"),
               env={"WEFT_TEST_INJECT_NAN": "7"})
    refused(done, 3, "step 7", "not finite", "checkpoints are as before")
    assert [row["step"] for row in metrics(f"{folder}/run")] == [1, 2, 3, 4, 5, 6]
    assert checkpoint_bytes(f"{folder}/run", 4)


def interrupt_saves(folder):
    """Also saves the step whose numbers the host has not read yet."""
    interrupt(GPU, f"{folder}/run", text(folder), "--device", "cuda")


def evaluates(folder):
    often = ["--eval-every", "4"]
    train(*base(folder, "cpu", *often))
    train(*base(folder, "gpu", "--device", "cuda", *often), program=GPU)
    for got, want in zip(metrics(f"{folder}/gpu"), metrics(f"{folder}/cpu")):
        assert ("val_loss" in got) == ("val_loss" in want) == (want["step"] % 4 == 0)
        if "val_loss" in want:
            assert abs(got["val_loss"] - want["val_loss"]) < 1e-5 * want["val_loss"]


def meta_predicts_the_peak(folder):
    """A step on meta:cuda counts the bytes of the GPU's step, and --dry-run prints them in
    advance."""
    for i, more in enumerate((["--dtype", "bf16", "--mtp", "1"], ["--arch", "llama", "--qk-norm", "--mtp", "2"],
                              ["--dtype", "bf16", "--micro-batch", "2", "--recompute", "full"],
                              ["--dtype", "bf16", "--master-weights", "remainder", "--mtp", "1"],
                              ["--arch", "llama", "--kv-heads", "1", "--recompute", "selective"],
                              ["--optimizer", "sgd", "--micro-batch", "1"],
                              ["--state-dtype", "f16", "--dim", "48", "--vocab", "300"],
                              ["--arch", "llama", "--attention", "mla", "--q-lora", "24"],
                              ["--pattern", "da", "--dtype", "bf16", "--recompute", "full"])):
        runs = {}
        graph = ["--graph"] if i % 2 else []
        for device in ("cuda", "meta:cuda"):
            done = train(*base(folder, f"{device}{i}", "--device", device, *more, *graph,
                               steps=4), program=GPU)
            planned = [line for line in done.stdout.splitlines() if line.startswith("peak memory")]
            runs[device] = metrics(f"{folder}/{device}{i}"), planned
        for a, b in zip(runs["cuda"][0], runs["meta:cuda"][0]):
            assert b["loss"] is None
            for key in ("peak_bytes", "live_bytes"):
                assert a[key] == b[key], (more, key, a[key], b[key])
        line = peak_line(runs["cuda"][0][-1]["peak_bytes"])
        assert runs["cuda"][1] == runs["meta:cuda"][1] == [line], (more, runs["cuda"][1], line)
        dry = train(*base(folder, "none", "--device", "meta:cuda", "--dry-run", *more), program=GPU)
        assert line in dry.stdout, (more, dry.stdout)


def graph_gives_the_same_run(folder):
    """--graph gives the same rows and files as without it: with accumulation, dropout, warm-up,
    cosine schedule, evaluations, checkpoints, and a resume in the middle."""
    both = ["--device", "cuda", "--micro-batch", "2", "--warmup", "6", "--schedule", "cosine",
            "--clip", "0.5", "--eval-every", "5", "--save-every", "4", "--keep", "0"]
    for dtype in ("f32", "bf16"):
        def go(out, *more, **how):
            return run(GPU, *base(folder, f"{out}-{dtype}", "--dtype", dtype, *both, *more), **how)

        def result(out):
            return metrics(f"{folder}/{out}-{dtype}"), [
                checkpoint_bytes(f"{folder}/{out}-{dtype}", step) for step in (4, 8, STEPS)]

        assert go("eager").returncode == 0
        want = result("eager")
        assert len(want[0]) == STEPS and all(want[1])
        assert go("graph", "--graph").returncode == 0
        assert result("graph") == want, dtype
        # A NaN stops step 6; the run continues from the checkpoint of step 4.
        for out, first, second in (("on-off", ["--graph"], []), ("on-on", ["--graph"], ["--graph"]),
                                   ("off-on", [], ["--graph"])):
            stopped = go(out, *first, env={"WEFT_TEST_INJECT_NAN": "6"})
            refused(stopped, 3, "step 6", "not finite", "checkpoints are as before")
            assert [row["step"] for row in metrics(f"{folder}/{out}-{dtype}")] == list(range(1, 6))
            assert go(out, *second, "--resume").returncode == 0
            assert result(out) == want, (dtype, out)


def fp8_weights(folder):
    """Without bf16 weights: the rows and files of a run that has them, also as a graph, and between
    samples and checkpoints; in the memory that meta:cuda predicts."""
    both = ["--dtype", "fp8", "--seq", "32", "--sample-every", "2", "--save-every", "4"]
    planned = {}

    def go(out, *more):
        done = train(*base(folder, out, "--device", "cuda", *both, *more), program=GPU)
        planned[out] = next(line for line in done.stdout.splitlines() if line.startswith("peak memory"))
        rows = metrics(f"{folder}/{out}")
        peak = {row.pop("peak_bytes") for row in rows}.pop()
        assert planned[out] == peak_line(peak), (planned[out], peak)
        return peak, [{k: v for k, v in row.items() if not k.endswith("_bytes")} for row in rows], \
            checkpoint_bytes(f"{folder}/{out}", STEPS)

    peak, *want = go("plain")
    for out, more in (("alone", []), ("graph", ["--graph"])):
        less, *got = go(out, "--fp8-weights", *more)
        assert got == want and less < peak, (out, less, peak)


def offload(folder):
    """Activations and optimizer states in pinned memory: the same rows and files, in the memory that
    meta:cuda predicts."""
    both = ["--device", "cuda", "--save-every", "4"]
    for name, more in (("f32", []), ("bf16", ["--dtype", "bf16"]),
                       ("fp8", ["--dtype", "fp8", "--fp8-weights", "--seq", "32"])):
        runs = []
        for away in ([], ["--offload", "activations,states", "--offload-least", "1000"]):
            out = f"{name}-{len(away)}"
            done = train(*base(folder, out, *both, *more, *away), program=GPU)
            rows = metrics(f"{folder}/{out}")
            assert peak_line(rows[-1]["peak_bytes"]) in done.stdout, done.stdout
            runs.append(([{k: v for k, v in row.items() if not k.endswith("_bytes")} for row in rows],
                         checkpoint_bytes(f"{folder}/{out}", STEPS), rows[-1]["live_bytes"]))
        assert runs[0][:2] == runs[1][:2] and runs[1][2] < runs[0][2], (name, runs[0][2], runs[1][2])


def graph_with_other_layers(folder):
    for name, model in (("delta", ["--pattern", "da", "--dtype", "bf16"]),
                        ("latent", ["--attention", "mla"])):
        same = ["--arch", "llama", "--device", "cuda", *model]
        train(*base(folder, f"{name}-eager", *same, steps=6), program=GPU)
        train(*base(folder, f"{name}-graph", *same, "--graph", steps=6), program=GPU)
        eager, graph = (f"{folder}/{name}-{how}" for how in ("eager", "graph"))
        assert metrics(eager) == metrics(graph), name
        assert checkpoint_bytes(eager, 6) == checkpoint_bytes(graph, 6), name


def predicts_several_tokens(folder):
    """--mtp gives the CPU's numbers, the same bits with a graph and after a resume, and no
    allocation."""
    mtp = ["--mtp", "2", "--micro-batch", "2", "--schedule", "constant", "--warmup", "5"]
    train(*base(folder, "cpu", *mtp))
    gpu = [*mtp, "--device", "cuda"]
    train(*base(folder, "gpu", *gpu), program=GPU)
    want, rows = metrics(f"{folder}/cpu"), metrics(f"{folder}/gpu")
    close(rows, want, 1e-5)
    for a, b in zip(rows, want):
        for key in ("mtp_1_loss", "mtp_2_loss"):
            assert abs(a[key] - b[key]) < 1e-5 * b[key], (a["step"], key, a[key], b[key])
            share = key.replace("loss", "acceptance")
            assert abs(a[share] - b[share]) < 0.02, (a["step"], share, a[share], b[share])
    with open(f"{folder}/gpu/metrics.jsonl") as lines:
        allocations = [json.loads(line)["system_allocs"] for line in lines]
    assert allocations[3] == allocations[-1], allocations
    train(*base(folder, "graph", *gpu, "--graph"), program=GPU)
    train(*base(folder, "parts", *gpu, steps=STEPS // 2), program=GPU)
    train(*base(folder, "parts", *gpu, "--resume"), program=GPU)
    for out in ("graph", "parts"):
        again = metrics(f"{folder}/{out}")
        again[STEPS // 2 - 1].pop("val_loss", None)  # the first part evaluated after its last step
        assert [{k: v for k, v in row.items() if not k.endswith("_bytes")} for row in again] == \
            [{k: v for k, v in row.items() if not k.endswith("_bytes")} for row in rows], out
        assert checkpoint_bytes(f"{folder}/{out}", STEPS) == checkpoint_bytes(f"{folder}/gpu", STEPS)


def graph_allocates_nothing(folder):
    train(*base(folder, "run", "--device", "cuda", "--graph"), program=GPU)
    with open(f"{folder}/run/metrics.jsonl") as lines:
        allocations = [json.loads(line)["system_allocs"] for line in lines]
    # A row is written a step late: the row of step 2 after the capture in step 3.
    assert allocations[1] == allocations[-1] > allocations[0], allocations


def wrong_uses(folder):
    refused(run(GPU, *base(folder, "a", "--graph")), 2, "--graph: needs --device cuda, got cpu")
    refused(run(GPU, *base(folder, "a", "--device", "cuda:2")), 2, "cuda:2", "number of GPUs 2")
    refused(run(GPU, *base(folder, "a", "--device", "cuda"), env={"WEFT_EMU_DEVICES": "0"}), 2,
            "cuda:0 cannot be used")
    refused(run(GPU, *base(folder, "a", "--device", "gpu")), 2, "cuda", "gpu")
    for flags, what in ((("--dim", "1000000"), "the model"), (("--batch", "1000000000"), "a batch")):
        refused(run(GPU, *base(folder, "a", "--device", "cuda", *flags)), 2, "memory", what, "GB")


main([trains_like_the_cpu, trains_in_bf16, resumes, steady_memory, not_finite, interrupt_saves, evaluates,
      meta_predicts_the_peak, graph_gives_the_same_run, fp8_weights, offload, graph_with_other_layers,
      predicts_several_tokens, graph_allocates_nothing, wrong_uses])
