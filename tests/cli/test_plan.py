"""plan: the memory of a step as text, JSON and picture, what fits, and one line for wrong use."""
import json
import pathlib
import xml.etree.ElementTree

from support import SMALL, main, peak_line, refused, run, text, train


def plan(*args):
    done = run("plan", *args)
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout


def agrees_with_the_trainer(folder):
    layouts = [[], ["--dtype", "bf16"], ["--dp", "4", "--zero"], ["--tp", "2", "--sp"], ["--recompute", "full"]]
    for device, flag in (("meta", "cpu"), ("meta:cuda", "cuda:1")):
        for layout in layouts:
            dry = train("--data", text(folder), "--dry-run", "--device", device, *SMALL, *layout).stdout
            out = f"{folder}/plan.json"
            printed = plan("--device", flag, "--json", out, *SMALL, *layout)
            got = json.loads(pathlib.Path(out).read_text())
            assert peak_line(got["peak_bytes"]) in dry, (layout, dry)
            assert peak_line(got["peak_bytes"]) in printed, printed
            assert got["peak_bytes"] == sum(got["by_category"].values())
            for category, n in got["by_category"].items():
                assert n == sum(m["live"][category] for m in got["modules"]), (category, got)


def like_train_moe(folder):
    flags = ["--capacity", "1.5", "--device", "meta", *SMALL]
    dry = train("--data", text(folder), "--dry-run", *flags, program="train_moe").stdout
    line = next(line for line in dry.splitlines() if line.startswith("peak memory"))
    assert line in plan("--moe", *flags), dry
    file = pathlib.Path(folder) / "moe.toml"
    file.write_text("moe = true\n")
    assert line in plan("--moe=true", *flags) and line in plan("--config", file, *flags), dry
    refused(run("plan", "--config", file, "--moe=false", *flags), 2, "--capacity: needs --experts")
    refused(run("plan", "--moe=2", *flags), 2, "--moe: must be true or false, got '2'")


def draws(folder):
    out = f"{folder}/memory.svg"
    printed = plan("--svg", out, "--micro-batch", "2", *SMALL)
    assert out in printed
    words = [e.text for e in xml.etree.ElementTree.parse(out).iter() if e.tag.endswith("}text")]
    for word in ("forward", "backward", "activation", "Memory of a step of rank 0 of 1"):
        assert word in words, words


def fits(folder):
    del folder
    flags = ["--device", "cuda", *SMALL]
    assert "as it is" in plan("--fit", "1GiB", *flags)
    with_less = plan("--fit", "700kB", *flags)
    line = next(line for line in with_less.splitlines() if line.startswith("fits 700kB"))
    assert "with --" in line and "ms a step" in line, line
    refused(run("plan", "--fit", "1kB", *flags), 2, "--fit: no 3 changes together bring")


def prints_as_the_page(folder):
    """The example of docs/memory.md: its command, and what it prints."""
    del folder
    blocks = (pathlib.Path(__file__).parents[2] / "docs/memory.md").read_text().split("```")
    at = next(i for i, block in enumerate(blocks) if block.startswith("\nbuild/release/bin/plan "))
    printed = plan(*blocks[at].split()[1:])
    assert printed == blocks[at + 2].removeprefix("\n"), f"docs/memory.md must show\n{printed}"


ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}
# Published configurations: name, config.json, flags of a layout, parameters in all and of a rank, ranks.
PUBLISHED = (
    ("Llama-3.1-8B", dict(model_type="llama", vocab_size=128256, hidden_size=4096, num_hidden_layers=32,
                          num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336,
                          max_position_embeddings=131072, rope_theta=500000.0, rope_scaling=ROPE),
     ["--tp", 2, "--dp", 4, "--batch", 4], "8,030,261,248", "4,015,263,744", 8),
    ("Qwen3-30B-A3B", dict(model_type="qwen3_moe", vocab_size=151936, hidden_size=2048, head_dim=128,
                           num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4,
                           intermediate_size=6144, moe_intermediate_size=768, num_experts=128,
                           num_experts_per_tok=8, norm_topk_prob=True, max_position_embeddings=40960),
     ["--dp", 16, "--ep", 8, "--fsdp", "--batch", 16, "--force-balance"], "30,532,122,624", "5,164,972,032", 16),
    ("DeepSeek-V3", dict(model_type="deepseek_v3", vocab_size=129280, hidden_size=7168, intermediate_size=18432,
                         moe_intermediate_size=2048, num_hidden_layers=61, num_attention_heads=128,
                         num_key_value_heads=128, n_shared_experts=1, n_routed_experts=256, num_experts_per_tok=8,
                         n_group=8, topk_group=4, first_k_dense_replace=3, num_nextn_predict_layers=1,
                         max_position_embeddings=163840),
     ["--mtp", 0, "--dp", 64, "--ep", 64, "--zero", "--batch", 64, "--force-balance", "--recompute", "full"],
     "671,026,404,352", "27,334,958,080", 64))


def full_size_folders(folder):
    """Folders with nothing but config.json: what a layout needs on each rank, by category."""
    peaks = {}
    for name, config, flags, total, own, ranks in PUBLISHED:
        here, out = pathlib.Path(folder) / name, f"{folder}/{name}.json"
        here.mkdir()
        (here / "config.json").write_text(json.dumps(config))
        flags = ["--init", here, "--seq", 1024, "--device", "cuda", "--dtype", "bf16", *flags]
        printed = plan(*flags, "--json", out)
        assert f"{own} of this rank, {total} in all" in printed, printed
        assert f"0 of {ranks}," in printed, printed
        got = json.loads(pathlib.Path(out).read_text())
        assert got["peak_bytes"] == sum(got["by_category"].values()), got
        peaks[name] = got["by_category"]
    # In bf16 a rank of --tp 2 has half of the model; --fsdp and --zero share out weights or states.
    assert peaks["Llama-3.1-8B"]["parameter"] >= 2 * 4_015_263_744, peaks
    assert peaks["Qwen3-30B-A3B"]["parameter"] < 5_164_972_032, peaks  # sharded by --fsdp
    assert peaks["DeepSeek-V3"]["optimizer"] < 6 * 27_334_958_080, peaks  # by --zero
    refused(run("plan", "--init", folder), 2, "holds neither a checkpoint nor a config.json")
    refused(run("train_gpt", "--data", text(folder), "--init", f"{folder}/Llama-3.1-8B"), 2, "model.safetensors")


def wrong_use(folder):
    refused(run("plan", "--fit", "much", *SMALL), 2, "--fit: must be a size such as 24GiB or 80GB, got 'much'")
    refused(run("plan", "--tflops", "0", *SMALL), 2, "--tflops: must be above 0, got 0")
    refused(run("plan", "--host-link", "-1", *SMALL), 2, "--host-link: must be above 0, got -1")
    refused(run("plan", "--layrs", "3"), 2, "--layrs", "--layers")
    refused(run("plan", "--device", "tpu"), 2, "device: must be cpu, cuda", "tpu")
    refused(run("plan", "--dp", "3", *SMALL), 2, "--batch", "3")
    refused(run("plan", "--dp", "2", "--rank", "2", *SMALL), 2, "rank", "2")
    refused(run("plan", "--json", f"{folder}/none/plan.json", *SMALL), 1, "plan.json")


main([agrees_with_the_trainer, like_train_moe, draws, fits, prints_as_the_page, full_size_folders, wrong_use])
