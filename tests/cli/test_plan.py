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


def wrong_use(folder):
    refused(run("plan", "--fit", "much", *SMALL), 2, "--fit: must be a size such as 24GiB or 80GB, got 'much'")
    refused(run("plan", "--tflops", "0", *SMALL), 2, "--tflops: must be above 0, got 0")
    refused(run("plan", "--host-link", "-1", *SMALL), 2, "--host-link: must be above 0, got -1")
    refused(run("plan", "--layrs", "3"), 2, "--layrs", "--layers")
    refused(run("plan", "--device", "tpu"), 2, "device: must be cpu, cuda", "tpu")
    refused(run("plan", "--dp", "3", *SMALL), 2, "--batch", "3")
    refused(run("plan", "--dp", "2", "--rank", "2", *SMALL), 2, "rank", "2")
    refused(run("plan", "--json", f"{folder}/none/plan.json", *SMALL), 1, "plan.json")


main([agrees_with_the_trainer, like_train_moe, draws, fits, prints_as_the_page, wrong_use])
