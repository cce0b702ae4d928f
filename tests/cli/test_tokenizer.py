#!/usr/bin/env python3
"""train_tokenizer, and runs whose text goes through the tokenizer that it writes."""
import json
import pathlib
import re
import struct

from support import SMALL, main, metrics, refused, run, text, train


FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures/tokenizers"


def trained(folder, vocab=300):
    out = pathlib.Path(folder) / "tokenizer.json"
    done = train("--data", text(folder), "--vocab", vocab, "--out", out, program="train_tokenizer")
    assert "bytes of this text per token" in done.stdout, done.stdout
    return out


def run_on_text(folder, *more):
    file = trained(folder)
    done = train("--data", text(folder), "--tokenizer", file, "--out", f"{folder}/run", "--steps", 4, "--eval-every", 4,
                 *SMALL, *more)
    return file, done


def text_is_encoded(folder):
    file, done = run_on_text(folder)
    assert "bits per byte" in done.stdout, done.stdout
    state = json.loads((pathlib.Path(folder) / "run/checkpoints/step_00000004/state.json").read_text())
    assert state["tokenizer"] == "tokenizer.json" and state["model"]["vocab"] == 300, state


def checkpoint_carries_it(folder):
    file, _ = run_on_text(folder)
    copy = pathlib.Path(folder) / "run/checkpoints/step_00000004/tokenizer.json"
    assert copy.read_bytes() == file.read_bytes()
    file.unlink()
    out = [train("--checkpoint", f"{folder}/run", "--prompt", "the cat", "--tokens", 20, *more, program="generate").stdout
           for more in ([], ["--tokenizer", copy])]
    assert out[0].startswith("the cat") and out[0] == out[1], out
    # A damaged copy is seen before it is used.
    copy.write_bytes(copy.read_bytes()[:-10])
    refused(run("generate", "--checkpoint", f"{folder}/run"), 1, "tokenizer.json")


def resume_needs_the_same(folder):
    file, _ = run_on_text(folder)
    train("--out", f"{folder}/run", "--resume", "--steps", 6)
    file.write_text(file.read_text().replace("<|endoftext|>", "<|end-of-text|>"))
    refused(run("train_gpt", "--out", f"{folder}/run", "--resume", "--steps", 8), 2, "--tokenizer", "checkpoint")


def token_files(folder):
    file = trained(folder)
    tokens = pathlib.Path(folder) / "tokens.bin"
    tokens.write_bytes(struct.pack("<4000H", *(i % 299 for i in range(4000))))
    done = train("--data", tokens, "--tokenizer", file, "--out", f"{folder}/run", "--steps", 2, "--eval-every", 2, *SMALL)
    assert "bits per byte" in done.stdout, done.stdout
    done = train("--data", tokens, "--tokenizer", file, "--out", f"{folder}/packed", "--steps", 2, "--pack", "<|endoftext|>",
                 *SMALL)


def special_tokens_have_no_bytes(folder):
    file = trained(folder)
    tokens = pathlib.Path(folder) / "tokens.bin"
    tokens.write_bytes(struct.pack("<4000H", *(299 if i % 2 else 0 for i in range(4000))))
    done = train("--data", tokens, "--tokenizer", file, "--out", f"{folder}/run", "--dry-run", *SMALL)
    mean = re.search(r"bytes per token\s+([0-9.]+)", done.stdout)
    assert mean and 0.45 < float(mean[1]) < 0.55, done.stdout


def packing_takes_a_number_first(folder):
    # The text "2" is the token 17, which ends no document here; the token 2 does.
    file = trained(folder)
    tokens = pathlib.Path(folder) / "tokens.bin"
    tokens.write_bytes(struct.pack("<4000H", *(i % 10 for i in range(4000))))
    losses = []
    for name, more in (("number", []), ("named", ["--tokenizer", file])):
        train("--data", tokens, *more, "--out", f"{folder}/{name}", "--steps", 2, "--pack", 2, "--vocab", 300, *SMALL)
        losses.append([row["loss"] for row in metrics(f"{folder}/{name}")])
    assert losses[0] == losses[1], losses


def a_space_may_follow_the_prompt(folder):
    # Decoding leaves out the space before the first word of a text, and a prompt is its beginning.
    train("--data", text(folder), "--tokenizer", FIXTURES / "small.model", "--out", f"{folder}/run", "--steps", 1, *SMALL)
    prompt = "the cat"
    out = [train("--checkpoint", f"{folder}/run", "--prompt", prompt, "--tokens", 1, "--temperature", 1, "--topp", 1, "--seed",
                 seed, program="generate").stdout for seed in range(1, 13)]
    assert all(o.startswith(prompt) for o in out) and any(o[len(prompt)] == " " for o in out), out


def a_prompt_may_end_inside_a_character(folder):
    # Its last byte is printed once: with the rest of the character, or as U+FFFD when another one follows.
    train("--data", text(folder), "--out", f"{folder}/run", "--steps", 1, *SMALL)
    out = [train("--checkpoint", f"{folder}/run", "--prompt", "caf\udcc3", "--tokens", 1, "--temperature", 1, "--topp", 1,
                 "--seed", seed, program="generate").stdout for seed in range(1, 9)]
    assert any(o[:4] == "caf\ufffd" and o[4].isascii() for o in out), out


def prompts_without_tokens(folder):
    path = pathlib.Path(folder) / "t.json"
    path.write_text('{"normalizer":{"type":"Replace","pattern":{"String":"\\n"},"content":""},'
                    '"model":{"unk_token":"a","vocab":{"a":0,"b":1},"merges":[]}}')
    # train_gpt's sample begins with a line break, which is no token here.
    train("--data", text(folder), "--tokenizer", path, "--out", f"{folder}/run", "--steps", 1, "--sample-every", 1, *SMALL)
    refused(run("generate", "--checkpoint", f"{folder}/run", "--prompt", "\n"), 2, "--prompt", "no token")


def rows_beyond_the_vocabulary_are_not_sampled(folder):
    # Of 2,000 tokens 300 exist: an untrained model would draw another one at once.
    run_on_text(folder, "--vocab", 2000)
    for more in ([], ["--temperature", 0], ["--temperature", 5, "--topp", 1]):
        train("--checkpoint", f"{folder}/run", "--prompt", "the", "--tokens", 60, *more, program="generate")


def hostile_files(folder):
    path = pathlib.Path(folder) / "t.json"
    data = text(folder)

    def refuses(*parts):
        refused(run("train_gpt", "--data", data, "--tokenizer", path, "--out", f"{folder}/no", *SMALL), 2, "--tokenizer", *parts)

    path.write_text("{")
    refuses("expected a key")
    path.write_text('{"model":' + "[" * 100000)
    refuses("nesting too deep")
    path.write_text('{"model":{"vocab":{"a":0,"":1},"merges":[["a",""]],"unk_token":"a"}}')
    refuses("merge 0 joins an empty token")
    with open(path, "wb") as file:
        file.truncate(10 * 10**9)
    refuses("at most 67108864 bytes")
    refused(run("train_tokenizer", "--data", data, "--vocab", 10, "--out", f"{folder}/x.json"), 2, "vocab", "257", "10")
    refused(run("train_tokenizer", "--out", f"{folder}/x.json"), 2, "--data")
    assert "--config" in run("train_tokenizer", "--help").stdout


main([text_is_encoded, checkpoint_carries_it, resume_needs_the_same, token_files, special_tokens_have_no_bytes,
      packing_takes_a_number_first, a_space_may_follow_the_prompt, a_prompt_may_end_inside_a_character,
      prompts_without_tokens,
      rows_beyond_the_vocabulary_are_not_sampled, hostile_files])
