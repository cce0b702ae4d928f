#!/usr/bin/env python3
"""generate with stops and several prompts, chat, evaluate, and training on conversations."""
import json
import math
import pathlib
import re
import shutil
import subprocess

from support import BIN, SMALL, WORDS, main, metrics, refused, run, text, train

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures"
GREEDY = ["--temperature", 0, "--tokens", 30]


def trained(folder):
    train("--data", text(folder), "--out", f"{folder}/run", "--steps", 30, "--lr", 1e-2, "--arch", "llama", *SMALL)
    return ["--checkpoint", f"{folder}/run"]


def several_prompts_and_stops(folder):
    model = trained(folder)
    prompts = ["the cat sat", "dog", "a mat and saw that"]
    for how in (GREEDY, ["--seed", 5, "--tokens", 40]):
        alone = [train(*model, "--prompt", p, *how, program="generate").stdout for p in prompts]
        flags = [word for p in prompts for word in ("--prompt", p)]
        assert train(*model, *flags, *how, program="generate").stdout == "\n".join(alone)
        file = pathlib.Path(folder) / "prompts.txt"
        file.write_text("\n".join(prompts) + "\n")
        assert train(*model, "--prompts", file, *how, program="generate").stdout == "\n".join(alone)
    whole = train(*model, "--prompt", "the", *GREEDY, program="generate").stdout
    stop = whole[10:13]  # some text that comes
    cut = train(*model, "--prompt", "the", "--stop", "no such text", "--stop", stop, *GREEDY, program="generate").stdout
    assert cut == whole[:3 + whole[3:].index(stop)] + "\n", (whole, stop, cut)
    refused(run("generate", *model, "--stop", ""), 2, "--stop")
    refused(run("generate", *model, "--prompts", f"{folder}/none"), 1, "none")
    empty = pathlib.Path(folder) / "empty.txt"
    empty.write_text("\n")
    refused(run("generate", *model, "--prompts", empty), 2, "--prompts")
    refused(run("generate", *model, "--prompts", file, "--prompt", "the"), 2, "--prompts", "in place of --prompt")


def an_end_token_ends(folder):
    here = pathlib.Path(folder) / "llama"
    shutil.copytree(FIXTURES / "hf/llama", here)
    greedy = ["--model", here, "--prompt", "go", *GREEDY]
    whole = train(*greedy, "--ignore-end", program="generate").stdout
    # Bytes are the tokens: one in the middle becomes an end.
    end = next(ord(c) for c in whole[8:] if ord(c) < 128)
    for name in ("generation_config.json", "config.json"):
        config = json.loads((here / name).read_text()) if (here / name).exists() else {}
        config["eos_token_id"] = [130, end]
        (here / name).write_text(json.dumps(config))
        got = train(*greedy, program="generate").stdout
        assert got == whole[:whole.index(chr(end), 2)] + "\n", (whole, got)
        (here / "generation_config.json").unlink(missing_ok=True)
    # Files that are not what they should be.
    generation = here / "generation_config.json"
    for content, word in (("{", "expected"), ('{"eos_token_id": "x"}', "eos_token_id"), ('{"eos_token_id": [1e30]}', "eos_token_id"),
                          ('{"eos_token_id": -1}', "eos_token_id")):
        generation.write_text(content)
        refused(run("generate", *greedy), 2, "generation_config.json", word)
    for name, program in (("generation_config.json", "generate"), ("chat_template.jinja", "chat")):
        generation.unlink(missing_ok=True)
        with open(here / name, "wb") as file:
            file.truncate(10 * 10**9)
        refused(run(program, "--model", here), 2, name, "at most")


def marked(folder):
    """A tokenizer with the marks of ChatML."""
    tokenizer = json.loads((FIXTURES / "tokenizers/qwen.json").read_text())
    mark = dict(tokenizer["added_tokens"][0])
    tokenizer["added_tokens"] += [{**mark, "id": 500 + i, "content": c} for i, c in enumerate(("<|im_start|>", "<|im_end|>"))]
    file = pathlib.Path(folder) / "tokenizer.json"
    file.write_text(json.dumps(tokenizer))
    return file


def chatting(folder):
    """A model whose tokenizer says that it writes ChatML; nothing is printed but its replies."""
    file = marked(folder)
    train("--data", text(folder), "--tokenizer", file, "--out", f"{folder}/run", "--steps", 2, "--arch", "llama", *SMALL)
    talk = pathlib.Path(folder) / "talk.txt"
    talk.write_text("hi\n\n/new\nhi\n/quit\nunread\n")

    def replies(*more):
        with open(talk) as lines:
            return subprocess.run([BIN / "chat", "--model", f"{folder}/run", "--tokens", "6", *map(str, more)], stdin=lines,
                                  capture_output=True, text=True, errors="replace", timeout=60)

    done = replies("--temperature", 0)
    half = len(done.stdout) // 2
    assert done.returncode == 0 and half > 1 and done.stdout[:half] == done.stdout[half:], done
    refused(replies("--template", "llama3"), 2, "no token '<|eot_id|>'")
    templates = [{"name": "tool_use", "template": "[INST]"}, {"name": "default", "template": "<|im_start|>"}]
    config = pathlib.Path(folder) / "run/tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": templates}))
    assert replies("--temperature", 0).stdout == done.stdout
    config.write_text(json.dumps({"chat_template": templates[:1]}))
    refused(replies(), 2, "mistral")
    config.unlink()
    refused(replies("--template", "alpaca"), 2, "chatml", "alpaca")
    refused(replies("--system", "x" * 200), 2, "message", "at most")
    train("--data", text(folder), "--out", f"{folder}/bytes", "--steps", 1, *SMALL)
    refused(run("chat", "--model", f"{folder}/bytes"), 2, "--template")
    refused(run("chat"), 2, "--model")


def evaluating(folder):
    trained(folder)
    model = ["--model", f"{folder}/run"]
    other = pathlib.Path(folder) / "other.txt"
    other.write_text("the cat sat on a mat and saw that dog who ran " * 3)
    loss = []
    for stride in (32, 4):
        out = train(*model, "--data", other, "--stride", stride, program="evaluate").stdout
        bits = float(re.search(r"bits per byte +([0-9.]+)", out)[1])
        nats = float(re.search(r"loss +([0-9.]+)", out)[1])
        assert abs(bits - nats / math.log(2)) < 1e-5, out  # a token is a byte
        loss.append(nats)
    assert loss[0] != loss[1] and max(loss) < 3, loss
    questions = pathlib.Path(folder) / "q.jsonl"
    rows = [{"context": "the cat", "choices": ["sat", "ZQX!"], "answer": 0}, {"context": "a", "choices": ["#%&", "mat"], "answer": 0}]
    questions.write_text("\n".join(map(json.dumps, rows)) + "\n")
    out = train(*model, "--choices", questions, program="evaluate").stdout
    assert re.search(r"acc +0.5000 \+- 0.5000\nacc_norm +0.5000", out), out
    questions.write_text(json.dumps({**rows[0], "answer": 2}))
    refused(run("evaluate", *model, "--choices", questions), 2, "line 1", "answer must be in [0, 2)")
    questions.write_text("{")
    refused(run("evaluate", *model, "--choices", questions), 2, "line 1")
    refused(run("evaluate", *model, "--data", other, "--stride", 40), 2, "--stride", "32")
    refused(run("evaluate", *model), 2, "--data")
    refused(run("evaluate", *model, "--choices", questions, "--stride", 4), 2, "--stride: needs --data, got 4")
    refused(run("evaluate", *model, "--data", other, "--limit", 4), 2, "--limit: needs --choices, got 4")
    # A token of the question that the model has not; --seq is the window of a model with MTP too.
    questions.write_text(json.dumps({**rows[0], "choices": ["a", "\u00e9"]}))
    refused(run("evaluate", "--model", FIXTURES / "hf/llama", "--choices", questions), 2, "line 1", "gives the token 195")
    train("--data", text(folder), "--out", f"{folder}/mtp", "--steps", 1, "--arch", "llama", "--mtp", 1, *SMALL)
    same = [train("--model", f"{folder}/mtp", "--data", other, "--seq", 8, "--stride", n, program="evaluate").stdout for n in (0, 8)]
    assert same[0] == same[1], same


def learning_to_answer(folder):
    """What users say is not learnt: the reply is, which does not depend on it."""
    file = marked(folder)
    data = pathlib.Path(folder) / "chats.jsonl"
    data.write_text("".join(json.dumps({"messages": [{"role": "user", "content": f"{i * 7919} {WORDS[i % 20]} {i}"},
                                                     {"role": "assistant", "content": "a mat"}]}) + "\n" for i in range(60))
                    + " \r\n")
    flags = ["--data", data, "--tokenizer", file, "--seq", 64, "--batch", 4, "--lr", 1e-2, "--layers", 1, "--heads", 2, "--dim", 32,
             "--log-every", 1000]
    done = train(*flags, "--chat", "auto", "--steps", 40, "--eval-every", 40, "--out", f"{folder}/run")
    assert metrics(f"{folder}/run")[-1]["loss"] < 0.3, metrics(f"{folder}/run")[-1]
    assert "bits per byte" in done.stdout, done.stdout
    talk = subprocess.run([BIN / "chat", "--model", f"{folder}/run", "--temperature", "0", "--tokens", "20"], input="1 dog\n",
                          capture_output=True, text=True, timeout=60)
    assert talk.stdout == "a mat\n", talk
    refused(run("train_gpt", *flags, "--chat", "auto", "--pack", "x", "--out", f"{folder}/no"), 2, "--chat", "--pack")
    # Few of a row's tokens are targets, of the second depth fewer.
    rows = []
    for name, more in (("whole", []), ("parts", ["--micro-batch", 1])):
        train(*flags, "--chat", "auto", "--steps", 3, "--arch", "llama", "--mtp", 2, "--dtype", "f64", *more, "--out", f"{folder}/{name}")
        rows.append(metrics(f"{folder}/{name}"))
    for a, b in zip(*rows, strict=True):
        for key in ("loss", "grad_norm", "mtp_1_loss", "mtp_2_loss"):
            assert abs(a[key] - b[key]) < 1e-9 * abs(a[key]), (key, a, b)
    asked = pathlib.Path(folder) / "asked.jsonl"
    asked.write_text('{"messages": [{"role": "user", "content": "x"}]}\n' * 2)
    for more, flag in (([], "--data"), (["--val-data", asked], "--val-data")):
        replaced = [asked if x is data and not more else x for x in flags]
        refused(run("train_gpt", *replaced, *more, "--chat", "auto", "--out", f"{folder}/no"), 2, flag, "an assistant must write")
    data.write_text('{"messages": 3}\n')
    refused(run("train_gpt", *flags, "--chat", "auto", "--out", f"{folder}/no"), 2, "chats.jsonl line 1")
    refused(run("train_gpt", *flags, "--chat", "llama3", "--out", f"{folder}/no"), 2, "no token", "llama3")


main([several_prompts_and_stops, an_end_token_ends, chatting, evaluating, learning_to_answer])
