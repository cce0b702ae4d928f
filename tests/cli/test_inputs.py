"""What is given to the programs and what they give: texts in brackets, numbers, lists of a config file, weights and
adapters of other models, values that are not finite, output that is lost."""
import json
import pathlib
import resource
import shutil
import struct
import subprocess

from support import BIN, SMALL, checkpoint_bytes, main, metrics, refused, run, text, train

FEW = ["--layers", "1", "--heads", "2", "--dim", "16", "--seq", "32", "--batch", "2"]


def base(folder, *args):
    return ["--data", text(folder), "--out", f"{folder}/run", "--steps", "4", *SMALL, *args]


def settings(program, *args):
    return dict(line.split(" = ", 1) for line in train(*args, "--print-config", program=program).stdout.splitlines()
                if " = " in line)


def texts_are_taken_as_they_are(folder):
    """A text in brackets is one text, and an empty value is the flag's own."""
    asked = settings("generate", "--prompt", "[INST] Hi [/INST]", "{}", "--prompt=[]", "--stop", "[1,2]")
    assert asked["prompt"] == '["[INST] Hi [/INST]", "{}", "[]"]' and asked["stop"] == '["[1,2]"]', asked
    assert asked["tokens"] == "300"
    for odd in ("{}", "-- x=[1]", "---\nk=[2]", "--- title =", "[1]="):
        assert json.loads(settings("generate", "--prompt", odd)["prompt"]) == [odd], odd
    config = pathlib.Path(folder) / "c.toml"
    config.write_text('prompt = ["[a]", "", "--tokens"]\nmodel = "[m]"\n')
    done = run("generate", "--config", config, "--print-config")
    refused(done, 2, "--prompt: must not be empty")
    config.write_text('prompt = ["[a]", "--tokens"]\nmodel = "[m]"\n')
    asked = settings("generate", "--config", config)
    assert asked["prompt"] == '["[a]", "--tokens"]' and asked["model"] == '"[m]"', asked
    odd = pathlib.Path(folder) / "[x]"
    odd.write_text(pathlib.Path(text(folder)).read_text())
    train("--data", odd, "--vocab", "300", "--special", "[INST]", "--special=[/INST]", "--out", f"{folder}/t.json",
          program="train_tokenizer")
    special = [t["content"] for t in json.loads(pathlib.Path(f"{folder}/t.json").read_text())["added_tokens"]]
    assert special == ["[INST]", "[/INST]"], special


def numbers_are_decimal(folder):
    given = settings("train_gpt", "--steps", "010", "--seed", "+0100", "--lr", "1e-3")
    assert given["steps"] == "10" and given["seed"] == "100" and float(given["lr"]) == 1e-3, given
    for flag, value in [("--seed", "18446744073709551616"), ("--steps", "0x10"), ("--steps", "1.5"), ("--steps", "1_000"),
                        ("--lr", "1e999"), ("--lr", "fast"), ("--eval-tokens", "9223372036854775807")]:
        refused(run("train_gpt", *base(folder), flag, value), 2, f"{flag}: must be", value)
    refused(run("train_gpt", *base(folder), "--keep=", "--steps", "1"), 2, "--keep: must be a whole number, got ''")
    refused(run("train_gpt", *base(folder), "--keep", ""), 2, "--keep: must be a whole number, got ''")


def lists_belong_to_flags_that_take_them(folder):
    config = pathlib.Path(folder) / "c.toml"
    for line, *parts in [('save-every = [2, "--norms"]', "--save-every: takes one value, got a list of 2", "line 1"),
                         ("eval-every = [32]", "--eval-every: takes one value, got a list of 1"),
                         ("help = true", "'help' is no setting", "line 1"),
                         ('completion = "bash"', "'completion' is no setting")]:
        config.write_text(line + "\n")
        refused(run("train_gpt", *base(folder), "--config", config), 2, *parts)
    config.write_text("save-every = []\n")
    refused(run("train_gpt", *base(folder), "--config", config), 2, "--save-every: takes one value, got a list of 0")
    refused(run("train_gpt", *base(folder), "--resume="), 2, "--resume: takes no value, got ''")


def a_flag_replaces_the_list_of_the_file(folder):
    config = pathlib.Path(folder) / "c.toml"
    for old in ('"old.txt"', '["old.txt", "older.txt"]'):
        config.write_text(f"data = {old}\nsteps = 7\n")
        asked = settings("train_gpt", "--config", config, "--data", "new.txt", "--steps", "8")
        assert asked["data"] == '["new.txt"]' and asked["steps"] == "8", asked
        assert settings("train_gpt", "--config", config)["data"] == (old if old[0] == "[" else f"[{old}]")


def texts_of_other_kinds(folder):
    """A list that is too long for a path, objects where text is read, and blank lines between objects."""
    names = ",".join(f"shards/train_{i:04}.txt" for i in range(400))
    refused(run("train_gpt", "--data", names, "--out", f"{folder}/run", *SMALL), 2, "train_0000.txt")
    objects = pathlib.Path(folder) / "o.jsonl"
    objects.write_text("".join(json.dumps({"text": text, "body": "x"}) + "\r\n\r\n" for text in ("the cat sat " * 50,) * 2))
    for flags in (["--data", objects], ["--data", text(folder), "--val-data", objects]):
        refused(run("train_gpt", *flags, "--out", f"{folder}/run", *SMALL), 2, f"{flags[-2]}: '", "tokenize")
    made = []
    for name, data in (("a", objects), ("b", pathlib.Path(folder) / "o.txt")):
        if name == "b":
            data.write_text("the cat sat " * 50)
        train("--data", data, "--vocab", "300", "--out", f"{folder}/{name}.json", program="train_tokenizer")
        made.append(json.loads(pathlib.Path(f"{folder}/{name}.json").read_text()))
    assert made[0]["model"]["merges"] == made[1]["model"]["merges"], made
    assert train("--data", objects, "--field", "body", "--vocab", "300", "--out", f"{folder}/c.json",
                 program="train_tokenizer").stdout.startswith(f"wrote {folder}/c.json: 257 tokens")
    train("--data", text(folder), "--out", f"{folder}/run", "--steps", "1", *FEW)
    refused(run("evaluate", "--model", f"{folder}/run", "--data", objects), 2, "--data: '", "tokenize")
    objects.write_bytes(b'{"context": "the cat", "choices": ["sat", "x"], "answer": 0}\r\n\r\n \r\n')
    assert "questions        1\n" in train("--model", f"{folder}/run", "--choices", objects, program="evaluate").stdout


def what_a_run_needs_to_go_on(folder):
    """Neither the tokenizer of the model that it began with, nor a best checkpoint that is intact."""
    words = text(folder)
    train("--data", words, "--vocab", "300", "--out", f"{folder}/t.json", program="train_tokenizer")
    train("--data", words, "--tokenizer", f"{folder}/t.json", "--out", f"{folder}/first", "--steps", "1", *FEW)
    on = ["--out", f"{folder}/run", "--keep-best", "--eval-every", "1"]
    train("--data", words, "--init", f"{folder}/first", "--steps", "2", "--batch", "2", *on)
    shutil.rmtree(f"{folder}/first")
    file, = pathlib.Path(f"{folder}/run/best/checkpoints").glob("*/model-r000.safetensors")
    data = bytearray(file.read_bytes())
    file.unlink()
    file.symlink_to(file.name)  # it cannot be read, which may be for now only
    refused(run("train_gpt", *on, "--resume", "--steps", "4"), 1, "model-r000.safetensors")
    file.unlink()
    data[-1] ^= 1
    file.write_bytes(data)
    done = train(*on, "--resume", "--steps", "4")
    assert "the next evaluation replaces it" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert len(metrics(f"{folder}/run")) == 4
    train("--checkpoint", f"{folder}/run/best", "--prompt", "the", "--tokens", "2", program="generate")
    refused(run("train_gpt", "--out", f"{folder}/run", "--resume", "--steps", "5", "--tokenizer", "gone.json"), 2,
            "--tokenizer: must be 'bytes', or a tokenizer's file or folder, got 'gone.json'")


def ruined_weights_are_not_saved(folder):
    """A step that makes weights infinite ends the run, and the checkpoint before it stays."""
    train(*base(folder))
    for layout in (["--dp", "2"], ["--dp", "2", "--zero"], ["--dp", "2", "--fsdp"], ["--tp", "2"]):
        done = run("train_gpt", *base(folder, "--out", f"{folder}/{''.join(layout)}", "--ranks", "2", *layout,
                                      "--weight-decay", "1e300", "--keep-best", "--eval-every", "1", "--save-every", "0"))
        refused(done, 3, "step 1: parameter ", "is not finite after the update; checkpoints are as before this step")
    before = checkpoint_bytes(f"{folder}/run", 4)
    done = run("train_gpt", *base(folder, "--resume", "--steps", "5", "--keep", "1", "--weight-decay", "1e300"))
    refused(done, 3, "step 5: parameter embed.weight is not finite after the update")
    assert checkpoint_bytes(f"{folder}/run", 4) == before and not checkpoint_bytes(f"{folder}/run", 5)
    train(*base(folder, "--resume", "--steps", "5", "--weight-decay", "0.1"))
    # Finite, and too large for a forward pass.
    done = run("train_gpt", *base(folder, "--resume", "--steps", "6", "--lr", "1e30"))
    refused(done, 3, "step 6: the validation loss is not a number")


def not_a_number_has_no_score(folder):
    train("--data", text(folder), "--out", f"{folder}/run", "--steps", "1", *FEW)
    train("--from", f"{folder}/run", "--to", f"{folder}/hf", program="convert")
    file = pathlib.Path(f"{folder}/hf/model.safetensors")
    data = bytearray(file.read_bytes())
    for at in range(8 + struct.unpack("<Q", data[:8])[0], len(data), 4):
        data[at:at + 4] = b"\0\0\xc0\x7f"
    file.write_bytes(data)
    questions = pathlib.Path(folder) / "q.jsonl"
    questions.write_text('{"context": "The cat", "choices": ["mat", "x"], "answer": 0}\n')
    refused(run("evaluate", "--model", f"{folder}/hf", "--choices", questions), 3, "must not be NaN")
    refused(run("evaluate", "--model", f"{folder}/hf", "--data", text(folder)), 3, "must not be NaN")
    refused(run("evaluate", "--model", f"{folder}/hf", "--choices", folder), 2, "is a folder")


def other_weights_are_noticed(folder):
    """A resumed run refuses --weights, and an adapter names the model that it was trained on."""
    train("--data", text(folder), "--out", f"{folder}/run", "--steps", "1", *FEW)
    refused(run("train_gpt", "--out", f"{folder}/run", "--resume", "--steps", "2", "--weights", "none"), 2,
            "--weights: a resumed run has its weights already, got 'none'")
    train("--from", f"{folder}/run", "--to", f"{folder}/hf", program="convert")
    train("--from", f"{folder}/run", "--to", f"{folder}/other", program="convert")
    # A run that began with weights goes on without naming them again, also from a full command line.
    begun = ["--data", text(folder), "--out", f"{folder}/begun", *FEW]
    train(*begun, "--weights", f"{folder}/hf", "--steps", "1")
    assert "weights" not in train(*begun, "--resume", "--steps", "2").stdout
    file = pathlib.Path(f"{folder}/other/model.safetensors")
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
    train("--data", text(folder), "--init", f"{folder}/hf", "--lora-rank", "2", "--steps", "1", "--batch", "2", "--out",
          f"{folder}/lora")
    ask = ["--adapter", f"{folder}/lora", "--prompt", "the", "--tokens", "2"]
    assert train("--model", f"{folder}/hf", *ask, program="generate").stderr == ""
    said = train("--model", f"{folder}/other", *ask, program="generate").stderr
    assert f"'{folder}/lora' was trained on the files of '{folder}/hf', and these are others" in said, said
    refused(run("convert", "--from", f"{folder}/run", "--to", f"{folder}/mix", "--family", "mixtral"), 2, "mixtral")


def token_files_are_no_texts(folder):
    words = text(folder)
    train("--data", words, "--tokenizer", "bytes", "--out", f"{folder}/new/deep/words", program="tokenize")
    tokens = f"{folder}/new/deep/words.bin"
    refused(run("tokenize", "--data", f"{folder}/new", "--tokenizer", "bytes", "--out", f"{folder}/again"), 2,
            "a text must have another name than a token file")
    refused(run("train_tokenizer", "--data", tokens, "--vocab", "300", "--out", f"{folder}/t.json"), 2, "a text must have another name")
    one = pathlib.Path(folder) / "one.txt"
    one.write_text("x")
    refused(run("train_gpt", *base(folder), "--val-data", one), 2, "--val-data: must have at least 2 tokens, got 1")


def lost_output_is_an_error(folder):
    train("--data", text(folder), "--out", f"{folder}/run", "--steps", "1", *FEW)
    for program, *args in [("generate", "--checkpoint", f"{folder}/run", "--prompt", "the", "--tokens", "20"),
                           ("evaluate", "--model", f"{folder}/run", "--data", text(folder)),
                           ("info", f"{folder}/run"), ("plan", "--preset", "tiny"), ("train_gpt", "--print-config")]:
        with open("/dev/full", "w") as full:
            done = subprocess.run([BIN / program, *args], stdout=full, stderr=subprocess.PIPE, text=True)
        refused(done, 1, f"{program}: standard output cannot be written")
    # A run trains on, and says it once.
    with open("/dev/full", "w") as full:
        done = subprocess.run([BIN / "train_gpt", *base(folder, "--out", f"{folder}/full", "--log-every", "1")],
                              stdout=full, stderr=subprocess.PIPE, text=True)
    refused(done, 0, "standard output cannot be written (No space left on device); the run goes on without it")
    # A reader that has seen enough is none.
    done = subprocess.run(f"{BIN}/generate --checkpoint {folder}/run --prompt the --tokens 300 | head -c 1", shell=True,
                          capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("t", ""), done


def a_limit_of_file_sizes_ends_with_a_line(folder):
    train(*base(folder))
    before, rows = checkpoint_bytes(f"{folder}/run", 4), metrics(f"{folder}/run")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
    done = subprocess.run([BIN / "train_gpt", *base(folder, "--resume", "--steps", "5")], preexec_fn=limit,
                          capture_output=True, text=True)
    refused(done, 1, "File too large")
    assert checkpoint_bytes(f"{folder}/run", 4) == before and metrics(f"{folder}/run")[:len(rows)] == rows


def settings_that_need_others(folder):
    refused(run("train_gpt", *base(folder), "--etp", "2"), 2, "--etp: needs --experts")
    refused(run("train_gpt", *base(folder), "--val-fraction", "0", "--keep-best"), 2, "--keep-best: needs held-out data")
    train(*base(folder, "--pattern", "aad"))  # more letters than the model has layers


main([texts_are_taken_as_they_are, numbers_are_decimal, lists_belong_to_flags_that_take_them,
      a_flag_replaces_the_list_of_the_file, texts_of_other_kinds, what_a_run_needs_to_go_on,
      ruined_weights_are_not_saved, not_a_number_has_no_score, other_weights_are_noticed, token_files_are_no_texts,
      lost_output_is_an_error, a_limit_of_file_sizes_ends_with_a_line,
      settings_that_need_others])
