"""Optional numbers in metrics.jsonl: norms, utilisation, energy, every balance loss."""
import json
import pathlib
import xml.etree.ElementTree

from support import SMALL, main, refused, run, text, train


def rows_of(folder, name, *args, program="train_gpt", env=None):
    out = f"{folder}/{name}"
    train("--data", text(folder), "--out", out, "--steps", "3", *SMALL, *args, program=program, env=env)
    with open(f"{out}/metrics.jsonl") as lines:
        return [json.loads(line) for line in lines]


def norms(folder):
    untied = ["--tie", "off"]
    plain = rows_of(folder, "plain", *untied)
    assert "param_norm" not in plain[0] and "zero_gradients" not in plain[0], plain[0]
    more = rows_of(folder, "more", "--norms", *untied)
    assert [row["loss"] for row in more] == [row["loss"] for row in plain]
    for layout in (["--ranks", "2", "--tp", "2"], ["--ranks", "2", "--zero"], ["--dtype", "bf16"]):
        other = rows_of(folder, "".join(layout), "--norms", *untied, *layout)
        for a, b in zip(more, other):
            assert abs(a["param_norm"] - b["param_norm"]) < 1e-3 * a["param_norm"], (layout, a, b)
            # At least the embedding rows of bytes that do not occur.
            assert a["zero_gradients"] > 1000 and b["zero_gradients"] > 1000, (layout, a, b)


def utilisation(folder):
    row = rows_of(folder, "given", "--peak-tflops", "2")[-1]
    assert row["peak_tflops"] == 2
    # 6 FLOPs per token for each weight of a product, plus attention.
    flops = row["mfu"] * 2e12 / row["tokens_per_s"]
    weights = 2 * (4 * 32 * 32 + 8 * 32 * 32) + 256 * 32
    assert 6 * weights < flops < 7.5 * weights, (flops / 6, weights)
    measured = rows_of(folder, "measured")[-1]
    assert 0 < measured["mfu"] < 1 and measured["peak_tflops"] > 0.001, measured
    assert "mfu" not in rows_of(folder, "bf16", "--dtype", "bf16")[-1]


def balance_losses(folder):
    moe = ["--arch", "llama", "--experts", "4", "--topk", "2"]
    one = rows_of(folder, "one", *moe)[-1]
    assert "aux_seq_loss" not in one and one["aux_loss"] > 0, one
    layers = one["layer_aux_losses"]
    assert len(layers) == 2 and abs(sum(layers) / 2 - one["aux_loss"]) < 1e-5, one
    row = rows_of(folder, "three", *moe, "--seq-aux-coeff", "0.001", "--global-aux-coeff", "0.002")[-1]
    kinds = [row[f"aux_{kind}_loss"] for kind in ("batch", "seq", "global")]
    assert min(kinds) > 0.9 and abs(sum(kinds) - row["aux_loss"]) < 1e-5, row
    biased = rows_of(folder, "bias", *moe, "--router", "sigmoid", "--aux", "bias", "--seq-aux-coeff", "0.001")[-1]
    assert biased["aux_loss"] > 0 and "aux_batch_loss" not in biased, biased


def energy(folder):
    zone = pathlib.Path(folder) / "zones" / "intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "max_energy_range_uj").write_text("1000000\n")
    here = {"WEFT_TEST_POWERCAP": str(zone.parent)}
    args = ["--data", text(folder), "--steps", "3", *SMALL]
    refused(run("train_gpt", *args, "--out", f"{folder}/on", "--energy", "on", env=here), 2,
            "--energy: no counter of cpu can be read here")
    (zone / "energy_uj").write_text("5\n")
    assert rows_of(folder, "auto", env=here)[-1]["joules"] == 0
    assert rows_of(folder, "ranks", "--ranks", "2", "--energy", "on", env=here)[-1]["joules"] == 0
    assert "joules" not in rows_of(folder, "off", "--energy", "off", env=here)[-1]


def profile(folder):
    plain = rows_of(folder, "plain", "--steps", "5")
    for name, flags in (("alone", []), ("ranks", ["--ranks", "2"]), ("recompute", ["--recompute", "full"])):
        out = f"{folder}/{name}"
        done = run("train_gpt", "--data", text(folder), "--out", out, *SMALL, "--steps", "5", "--profile", *flags)
        assert done.returncode == 0, done
        table = done.stdout[done.stdout.index("Mean of 3 steps"):done.stdout.index("profile  ")]
        for word in ("forward", "backward", "update", "linear", "attention", "between kernels"):
            assert word in table, (word, table)
        assert max(map(len, table.splitlines())) <= 80, table
        titles = [e.text for e in xml.etree.ElementTree.parse(f"{out}/profile.svg").iter() if e.tag.endswith("}title")]
        for box in ("backward", "attn", "mlp", "embed", "gemm", "adam_step"):
            assert any(t.startswith(f"{box}: ") for t in titles), (box, titles)
    with open(f"{folder}/alone/metrics.jsonl") as lines:
        assert [json.loads(line)["loss"] for line in lines] == [row["loss"] for row in plain]
    done = run("train_gpt", "--data", text(folder), "--out", f"{folder}/short", *SMALL, "--steps", "2", "--profile")
    assert "none: the first 2 steps are not timed" in done.stdout, done


def second_moment(folder):
    losses = {dtype: [row["loss"] for row in rows_of(folder, dtype, "--second-moment-dtype", dtype,
                                                     "--steps", "20")]
              for dtype in ("auto", "f32", "bf16", "f16", "fp8")}
    assert losses["auto"] == losses["f32"] != losses["bf16"], losses
    for dtype, other in losses.items():
        assert abs(other[-1] - losses["f32"][-1]) < 0.02, (dtype, losses)


def wrong_use(folder):
    args = ["--data", text(folder), "--out", f"{folder}/out", *SMALL]
    for flags, said in ((["--seq-aux-coeff", "1"], "--seq-aux-coeff: needs --experts"),
                        (["--experts", "4", "--aux", "seq", "--seq-aux-coeff", "1"],
                         "--seq-aux-coeff: is the loss of --aux seq; set --aux-coeff"),
                        (["--experts", "4", "--aux", "global", "--global-aux-coeff", "1"],
                         "--global-aux-coeff: is the loss of --aux global; set --aux-coeff"),
                        (["--recompute", "norms,gathered"],
                         "--recompute: gathered needs --sp, which gathers the inputs of products"),
                        (["--recompute", "norms,mpl"], "--recompute: must be one of none, norms, attention, mlp, "
                         "experts, gathered, selective, full, got 'mpl'"),
                        (["--recompute-every", "2"], "--recompute-every: needs --recompute, got none"),
                        (["--dtype", "f16", "--master-weights", "none"], "--master-weights: none needs --dtype bf16 or fp8"),
                        (["--loss-scale", "0.5"], "--loss-scale: must be 0, negative or at least 1"),
                        (["--profile", "--device", "meta"], "--profile: needs a device that computes, got meta"),
                        (["--peak-tflops", "-1"], "--peak-tflops: must be at least 0, got -1")):
        refused(run("train_gpt", *args, *flags), 2, said)


main([norms, utilisation, balance_losses, energy, profile, second_moment, wrong_use])
