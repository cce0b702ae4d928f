"""The trainer with experts: exact resume, logging, generation, an emulated GPU, wrong use."""
import json
import pathlib
import re

from support import SMALL, checkpoint_bytes, main, metrics, refused, run, text, train

GPU = "train_gpt_emulated"
# The defaults of train_moe, for programs without experts by default.
MOE = ["--arch", "llama", "--experts", "8", "--shared-ffn", "-1", "--router", "sigmoid", "--aux",
       "bias", "--bias-rate", "0.01", "--mtp", "1"]


def base(folder, out, *args):
    return ["--data", text(folder, 20000), "--out", f"{folder}/{out}", *SMALL, *args]


def is_train_gpt_with_other_defaults(folder):
    train(*base(folder, "a", "--steps", "3"), program="train_moe")
    train(*base(folder, "b", "--steps", "3", *MOE))
    assert metrics(f"{folder}/a") == metrics(f"{folder}/b")
    saved = [json.loads(next(pathlib.Path(folder).glob(f"{out}/checkpoints/step_*/state.json"))
                        .read_text())["model"] for out in "ab"]
    assert saved[0] == saved[1] and saved[0]["experts"] == 8, saved


def resumes(folder):
    """X2: experts, multi-token prediction and the expert bias, whose counts cover one step."""
    for i, more in enumerate(([], ["--aux", "global", "--z-loss", "0.001", "--micro-batch", "2"],
                              ["--aux", "seq", "--capacity", "1.25", "--recompute", "full"],
                              ["--aux", "none", "--force-balance", "--eval-every", "5"])):
        same = [*more, "--schedule", "constant", "--warmup", "5"]
        train(*base(folder, f"{i}a", "--steps", "20", *same), program="train_moe")
        train(*base(folder, f"{i}b", "--steps", "10", *same), program="train_moe")
        train(*base(folder, f"{i}b", "--steps", "20", *same, "--resume"), program="train_moe")
        whole, parts = metrics(f"{folder}/{i}a"), metrics(f"{folder}/{i}b")
        if "val_loss" not in whole[9]:  # the first part evaluated after its last step
            parts[9].pop("val_loss")
        assert whole == parts, f"metrics differ: {more}"
        once, twice = (checkpoint_bytes(f"{folder}/{i}{out}", 20) for out in "ab")
        assert once and once == twice, f"weights or optimizer states differ: {more}"


def latent_width_and_gate_are_of_the_model(folder):
    sizes = ["--latent", "12", "--shared-gate", "--schedule", "constant", "--warmup", "5"]
    train(*base(folder, "a", "--steps", "10", *sizes), program="train_moe")
    train(*base(folder, "b", "--steps", "5", *sizes), program="train_moe")
    train(*base(folder, "b", "--steps", "10", *sizes, "--resume"), program="train_moe")
    once, twice = (checkpoint_bytes(f"{folder}/{out}", 10) for out in "ab")
    assert once and once == twice, "weights or optimizer states differ"
    names = "".join(map(str, pathlib.Path(folder).glob("a/checkpoints/*/state.json")))
    model = json.loads(pathlib.Path(names).read_text())["model"]
    assert model["latent"] == 12 and model["shared_gate"] is True, model
    assert 'latent = 12' in pathlib.Path(folder, "a/config.toml").read_text()
    refused(run("train_moe", *base(folder, "a", "--steps", "12", "--resume")), 2, "another model",
            "latent 12 (this run: 0)", "shared_gate true (this run: false)")
    done = run("generate", "--checkpoint", f"{folder}/a", "--prompt", "the", "--tokens", "8")
    assert done.returncode == 0 and done.stdout.startswith("the"), done.stderr


def router_choices_are_of_the_model(folder):
    choices = ["--router", "softmax", "--aux", "seq", "--pre-softmax", "--router-scaling", "2.5",
               "--dense-layers", "1", "--jitter", "0.1", "--capacity", "1.5", "--drop", "position"]
    train(*base(folder, "a", "--steps", "3", *choices), program="train_moe")
    state, = pathlib.Path(folder).glob("a/checkpoints/*/state.json")
    model = json.loads(state.read_text())["model"]
    assert (model["pre_softmax"], model["router_scaling"], model["dense_layers"]) == (True, 2.5, 1), model
    assert len(metrics(f"{folder}/a")[0]["layer_loads"]) == 2  # the second layer and the MTP depth
    refused(run("train_moe", *base(folder, "a", "--steps", "4", *choices, "--router-scaling", "1", "--resume")),
            2, "another model", "router_scaling 2.5 (this run: 1)")
    done = run("generate", "--checkpoint", f"{folder}/a", "--prompt", "the", "--tokens", "8")
    assert done.returncode == 0 and done.stdout.startswith("the"), done.stderr
    train(*base(folder, "b", "--steps", "2", "--router", "softmax", "--aux", "none", "--sinkhorn"),
          program="train_moe")
    refused(run("train_moe", *base(folder, "c", "--sinkhorn", "--router", "softmax", "--aux", "seq")), 2,
            "--sinkhorn: balances by itself and needs --aux none, got seq")
    refused(run("train_gpt", *base(folder, "c", "--drop", "position")), 2, "--drop: needs --capacity")


def logs_losses_and_loads(folder):
    train(*base(folder, "a", "--steps", "8", "--moe-every", "2", "--layers", "4", "--aux", "aux",
                "--z-loss", "0.001", "--mtp", "0"), program="train_moe")
    for row in metrics(f"{folder}/a"):
        loads = row["layer_loads"]
        assert len(loads) == 2 and all(1 <= load <= 4 for load in loads), loads  # 8 experts, 2 each
        assert row["load_max_over_mean"] == max(loads)
        assert 0.9 < row["aux_loss"] < 4 and row["z_loss"] > 1, row
    train(*base(folder, "b", "--steps", "2"), program="train_moe")
    row = metrics(f"{folder}/b")[-1]
    assert "aux_loss" not in row and "z_loss" not in row and len(row["layer_loads"]) == 3, row


def logs_router_losses_once(folder):
    """Every batch is the same and nothing is learnt: counting a loss twice, not at all, or over too
    many layers, micro-batches or passes would change the number."""
    path = pathlib.Path(folder) / "same.txt"
    path.write_text("a" * 8000)
    for aux in ("aux", "seq", "global"):
        seen = {}
        for i, more in enumerate(([], ["--micro-batch", "1"], ["--log-every", "3"],
                                  ["--micro-batch", "2", "--recompute", "full"],
                                  ["--recompute", "selective"], ["--layers", "4", "--moe-every", "2"])):
            train("--data", path, "--out", f"{folder}/{aux}{i}", *SMALL, "--steps", "4", "--lr", "1e-12",
                  "--dropout", "0", "--aux", aux, "--z-loss", "0.001", "--mtp", "0", *more,
                  program="train_moe")
            rows = metrics(f"{folder}/{aux}{i}")
            # All tokens are equal, and 2 of 8 experts get them: aux_loss is their total probability
            # divided by 1 / 4, the value of an even load.
            for row in rows:
                assert 0.9 < row["aux_loss"] < 1.3 and row["layer_loads"] == [4, 4], row
            if "--layers" in more:
                continue
            for row in rows:
                for key in ("aux_loss", "z_loss"):
                    want = seen.setdefault(key, row[key])
                    assert abs(row[key] - want) < 1e-5 * want, (aux, more, key, row[key], want)


def micro_batches_agree(folder):
    """Without a balance loss the loss does not depend on the micro-batches."""
    train(*base(folder, "whole", "--steps", "5"), program="train_moe")
    for i, more in enumerate((["--micro-batch", "1"], ["--recompute", "full"],
                              ["--recompute", "selective", "--micro-batch", "2"])):
        train(*base(folder, f"parts{i}", "--steps", "5", *more), program="train_moe")
        for a, b in zip(metrics(f"{folder}/whole"), metrics(f"{folder}/parts{i}")):
            for key in ("loss", "grad_norm", "mtp_1_loss"):
                assert abs(a[key] - b[key]) < 1e-5 * max(1, abs(a[key])), (more, key, a, b)
            assert a["layer_loads"] == b["layer_loads"], (more, a, b)
    # A balance loss depends on the micro-batches but not on recomputing.
    for mode in ("none", "full"):
        train(*base(folder, f"aux_{mode}", "--steps", "5", "--aux", "aux", "--recompute", mode),
              program="train_moe")
    none, full = metrics(f"{folder}/aux_none"), metrics(f"{folder}/aux_full")
    assert len(none) == len(full) == 5
    for a, b in zip(none, full):
        assert a["loss"] == b["loss"], (a, b)
        assert abs(a["aux_loss"] - b["aux_loss"]) < 1e-6, (a, b)


def evens_out_the_load(folder):
    same = ["--steps", "250", "--batch", "16", "--lr", "3e-3", "--dropout", "0", "--mtp", "0"]
    worst = {}
    for aux in ("none", "bias", "aux"):
        train(*base(folder, aux, "--aux", aux, *same), program="train_moe")
        rows = metrics(f"{folder}/{aux}")[-20:]
        worst[aux] = sum(row["load_max_over_mean"] for row in rows) / len(rows)
    # Letters form words, and equal letters get the same experts: a single step cannot reach 1.
    assert worst["none"] > 2.5 and worst["bias"] < 1.8 and worst["aux"] < 1.6, worst


def allocates_nothing_in_a_steady_step(folder):
    for more in ([], ["--recompute", "selective"], ["--recompute", "full"],
                 ["--recompute", "full", "--pattern", "da", "--micro-batch", "2"]):
        out = "-".join(["run", *more])
        train(*base(folder, out, "--steps", "30", *more), program="train_moe")
        with open(f"{folder}/{out}/metrics.jsonl") as lines:
            allocations = [json.loads(line)["system_allocs"] for line in lines]
        assert allocations[5] == allocations[-2], (more, allocations)  # the last step evaluates


def generates(folder):
    train(*base(folder, "a", "--steps", "120", "--lr", "1e-2", "--seq", "64"), program="train_moe")
    greedy = ["--checkpoint", f"{folder}/a", "--prompt", "the cat", "--tokens", "100",
              "--temperature", "0"]
    plain, fast = run("generate", *greedy), run("generate", *greedy, "--speculative")
    assert plain.returncode == 0 and fast.returncode == 0, plain.stderr + fast.stderr
    assert plain.stdout == fast.stdout and len(plain.stdout) == 7 + 100 + 1, fast.stdout
    assert float(re.match(r"tokens per forward pass (\S+)", fast.stderr)[1]) > 1.2, fast.stderr


def trains_on_a_gpu(folder):
    moe = [*MOE, "--dropout", "0", "--steps", "10"]
    train(*base(folder, "cpu", *moe))
    train(*base(folder, "gpu", *moe, "--device", "cuda"), program=GPU)
    for a, b in zip(metrics(f"{folder}/gpu"), metrics(f"{folder}/cpu")):
        for key in ("loss", "grad_norm", "mtp_1_loss"):
            assert abs(a[key] - b[key]) <= 1e-5 * abs(b[key]), (a["step"], key, a[key], b[key])
        assert a["layer_loads"] == b["layer_loads"], (a, b)
    fixed = [*base(folder, "eager", *moe, "--capacity", "1.5", "--device", "cuda")]
    train(*fixed, program=GPU)
    train(*fixed, "--out", f"{folder}/graph", "--graph", program=GPU)
    a, b = (metrics(f"{folder}/{out}") for out in ("eager", "graph"))
    for x, y in zip(a, b):
        for key in ("loss", "grad_norm", "mtp_1_loss", "layer_loads"):
            assert x[key] == y[key], (x["step"], key, x, y)
    once, twice = (checkpoint_bytes(f"{folder}/{out}", 10) for out in ("eager", "graph"))
    assert once and once == twice, "weights or optimizer states differ"


def wrong_uses(folder):
    def wrong(*parts, args):
        refused(run("train_moe", *base(folder, "a", *args)), 2, *parts)

    wrong("topk", "9", "8", args=["--topk", "9"])
    wrong("--topk", "at least 1", "got 0", args=["--topk", "0"])
    wrong("groups", "3", args=["--groups", "3", "--group-topk", "1"])
    wrong("topk 1", args=["--topk", "1", "--router", "softmax", "--aux", "none"])
    wrong("--aux", "bias needs --router sigmoid", "softmax", args=["--router", "softmax"])
    wrong("--aux", "one of aux, seq, global, bias, none", "'both'", args=["--aux", "both"])
    wrong("--router", "one of softmax, sigmoid", args=["--router", "relu"])
    wrong("--capacity", "at least 0", args=["--capacity", "-1"])
    wrong("--moe-every", "at least 1", args=["--moe-every", "0"])
    wrong("--latent: must be at least 0, got -1", args=["--latent", "-1"])
    wrong("--latent: needs --experts, got 4 without", args=["--latent", "4", "--experts", "0"])
    wrong("--shared-gate: needs --experts", args=["--shared-gate", "--experts", "0"])
    wrong("--capacity: needs --experts", args=["--capacity", "1.5", "--experts", "0"])
    wrong("--z-loss: needs --experts", args=["--z-loss", "0.1", "--experts", "0"])
    wrong("--force-balance: needs --experts", args=["--force-balance", "--experts", "0"])
    wrong("--shared-gate: needs --shared-ffn, got 0", args=["--shared-gate", "--shared-ffn", "0"])
    refused(run(GPU, *base(folder, "a", *MOE, "--device", "cuda", "--graph")), 2, "--graph",
            "--capacity")
    train(*base(folder, "b", "--steps", "2"), program="train_moe")
    refused(run("train_gpt", *base(folder, "b", "--steps", "4", "--arch", "llama", "--mtp", "1",
                                   "--resume")), 2, "another model", "experts 8 (this run: 0)")
    # Of the balancing options only the bias belongs to the model.
    refused(run("train_moe", *base(folder, "b", "--steps", "4", "--aux", "aux", "--resume")), 2,
            "expert_bias true (this run: false)")


main([is_train_gpt_with_other_defaults, resumes, latent_width_and_gate_are_of_the_model, router_choices_are_of_the_model, logs_losses_and_loads, logs_router_losses_once, micro_batches_agree,
      evens_out_the_load, allocates_nothing_in_a_steady_step, generates, trains_on_a_gpu,
      wrong_uses])
