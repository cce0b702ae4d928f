"""The flags of the benchmarks: what cannot be measured is refused before anything is."""
import json
import pathlib

from support import main, refused, run


def refuses_wrong_values(folder):
    refused(run("bench_latency", "--threads", "two"), 2, "bench_latency: --threads: must be a whole number", "'two'")
    refused(run("bench_latency", "--threads", "99999999999"), 2, "--threads")
    refused(run("bench_latency", "--json", f"{folder}/none/rows"), 1, "--json: cannot write")
    refused(run("bench_ops", "--products", "none"), 2, "bench_ops: --products: must be all or a model")
    refused(run("bench_moe", "--only", "none"), 2, "--only: must be a part of a name", "'none'")
    refused(run("bench_roof", "--shapes", "none"), 2, "--shapes: must be yes or no, got 'none'")
    refused(run("bench_tokenizer", "--tokenizer", f"{folder}/none", "--text", f"{folder}/none"), 2, "bench_tokenizer: ")
    refused(run("bench_step", "--model", "smoke", "--steps", "2x"), 2, "--steps: must be a whole number in [1, 2147483647]")


def keeps_what_is_in_the_folder(folder):
    kept = pathlib.Path(folder) / "kept"
    kept.write_text("mine")
    refused(run("bench_save", "--out", folder), 2, "--out: must be a new folder")
    assert kept.read_text() == "mine"


def refuses_flags_without_effect(folder):
    for flags in (["--steps", 3], ["--dtype", "bf16"], ["--device", "cuda"], ["--bytes", "off"]):
        refused(run("bench_step", *flags), 2, f"bench_step: {flags[0]}: needs --model")
    refused(run("bench_step", "--model", "smoke", "--json", f"{folder}/rows"), 2, "--json: ")
    refused(run("bench_gpu_emulated", "--quick", "--resume"), 2, "--resume: needs --json")


def counts_no_waits_without_a_gpu(_):
    done = run("bench_step", "--model", "smoke", "--warmup", 0, "--steps", 2)
    assert json.loads(done.stdout.splitlines()[-1])["host_syncs"] == 0, done.stdout


def estimates_the_cluster_that_is_named(folder):
    step = ["--", "--preset", "tiny", "--dp", 2, "--batch", 2]

    def estimate(*flags):
        done = run("bench_comm_model", *flags, *step)
        assert done.returncode == 0, done.stderr
        return done.stdout
    a100 = estimate("--cluster", "a100-8")
    assert a100 == estimate("--cluster=a100-8") == estimate("--cluster", "h100-8", "--cluster", "a100-8")
    assert a100 != estimate() == estimate("--cluster", "a100-8", "--cluster", "h100-8")
    refused(run("bench_comm_model", "--cluster=none", *step), 2, "--cluster: must be one of h100-8, a100-8, got 'none'")
    refused(run("bench_comm_model", "--start-up", "--json", f"{folder}/rows", *step), 2, "--json: needs")


main([estimates_the_cluster_that_is_named, counts_no_waits_without_a_gpu, refuses_wrong_values, keeps_what_is_in_the_folder, refuses_flags_without_effect])
