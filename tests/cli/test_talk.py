"""The trainer's output: lines that fit a terminal, plain lines in a pipe, --help, changes of a resumed run;
also evaluation, samples and --keep-best."""
import fcntl
import math
import os
import pathlib
import pty
import re
import struct
import subprocess
import termios

from support import BIN, SMALL, checkpoint_bytes, main, metrics, refused, run, text, train


def base(folder, out, *args):
    return ["--data", text(folder), "--out", f"{folder}/{out}", *SMALL, *args]


def on_terminal(columns, program, *args):
    """Returns the lines kept on a terminal of that width, and all lines shown, also overwritten ones."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    process = subprocess.Popen([BIN / program, *map(str, args)], stdout=theirs, stderr=subprocess.PIPE,
                               env=env)
    os.close(theirs)
    out = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # Linux: the other side is closed
            break
        if not piece:
            break
        out += piece
    os.close(ours)
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(60) == 0, errors
    stay, shown = [], []
    for line in out.decode().replace("\r\n", "\n").split("\n"):
        parts = line.split("\r\x1b[K")
        shown += parts
        stay.append(parts[-1])
    return stay, shown


def fits_the_terminal(folder):
    for columns in (80, 60, 40):
        for program in ("train_gpt", "train_moe"):
            out = f"{program}{columns}"
            stay, shown = on_terminal(columns, program, *base(folder, out, "--steps", "12", "--log-every", "5",
                                                              "--eval-every", "6", "--save-every", "6"))
            steps = [line for line in stay if line.startswith("step ")]
            assert [int(re.match(r"step +(\d+)/12", line)[1]) for line in steps] == \
                [1, 5, 6, 10, 12, 12], steps
            of_steps = [line for line in shown if line.startswith("step ")]
            assert max(map(len, of_steps)) < columns, (columns, of_steps)
            facts = [line for line in stay if str(folder) not in line]  # paths stay whole
            assert max(map(len, facts)) < columns, (columns, facts)
            assert any("evaluating" in line for line in of_steps) and any("saving" in line for line in of_steps)
            assert all("loss" in line for line in steps), steps
            if columns == 80:
                assert all("left" in line or "perplexity" in line for line in steps), steps
                assert all("bits per byte" in line for line in steps if "validation" in line), steps


def plain_lines_in_a_pipe(folder):
    """Equal runs print the same text except for rates and times."""
    said = []
    for out in "ab":
        done = train(*base(folder, out, "--steps", "12", "--log-every", "5", "--eval-every", "6"))
        assert "\r" not in done.stdout and "\x1b" not in done.stdout
        said.append(re.sub(r"\d+ tok/s  left .*", "", done.stdout.replace(f"{folder}/{out}", "OUT")))
    assert said[0] == said[1], said
    lines = said[0].splitlines()
    assert re.search(r"parameters +\d+,\d{3}\n", said[0]), said[0]
    assert re.search(r"training +12 steps of 128 tokens, 1,536 in all, 0\.\d+ epochs", said[0]), said[0]
    validation = [line for line in lines if "validation" in line]
    assert len(validation) == 2, validation
    assert re.search(r"validation loss [\d.]+ nats per token  perplexity [\d.]+  [\d.]+ bits per byte",
                     validation[0]), validation


def resumes_by_its_folder(folder):
    flags = ["--schedule", "constant", "--warmup", "0", "--arch", "llama", "--lr", "3e-3"]
    train(*base(folder, "whole", "--steps", "12", *flags))
    train(*base(folder, "parts", "--steps", "6", *flags))
    done = train("--out", f"{folder}/parts", "--resume", "--steps", "12")
    assert "resume           after step 6\n" in done.stdout, done.stdout
    assert "changed          --steps 6 -> 12\n" in done.stdout, done.stdout
    assert done.stdout.count("changed ") == 1, done.stdout
    assert [row["loss"] for row in metrics(f"{folder}/whole")] == \
        [row["loss"] for row in metrics(f"{folder}/parts")]
    whole, parts = (checkpoint_bytes(f"{folder}/{out}", 12) for out in ("whole", "parts"))
    assert whole and whole == parts
    # A whole command line also resumes, and its changes are printed.
    done = train(*base(folder, "parts", "--steps", "14", "--arch", "llama", "--resume"))
    for change in ("--lr 0.003 -> 0.001 (moves the learning rate)",
                   "--schedule constant -> cosine (moves the learning rate)",
                   "--warmup 0 -> -1 (moves the learning rate)",
                   "--steps 12 -> 14 (moves the learning rate)"):
        assert f"changed          {change}\n" in done.stdout, done.stdout
    assert done.stdout.count("changed ") == 4, done.stdout
    refused(run("train_gpt", "--out", f"{folder}/parts", "--resume", "--optimizer", "sgd", "--steps", "20"), 2,
            "--optimizer: must be adamw as in the run that", "got sgd")
    refused(run("train_gpt", "--out", f"{folder}/parts", "--resume", "--preset", "tiny"), 2,
            "--preset: a resumed run keeps its settings, got 'tiny'; remove the flag")
    refused(run("train_gpt", "--out", f"{folder}/none", "--resume"), 2, "--data: name at least one file")
    done = train(*base(folder, "new", "--steps", "1", "--resume"))
    assert f"no checkpoint in '{folder}/new': from the beginning" in done.stdout, done.stdout


def helps(folder):
    for flags in (["--help"], ["--help", "all"]):
        for program in ("train_gpt", "train_moe", "train_mlp", "generate"):
            lines = train(*flags, program=program).stdout.splitlines()
            assert max(map(len, lines)) <= 80, (program, [line for line in lines if len(line) > 80])
    short, long = (train(*flags).stdout for flags in (["--help"], ["--help", "all"]))
    examples = re.search(r"Examples\n((?:  train_gpt --.*\n)+)\n", short)[1].splitlines()
    assert len(examples) == 3 and short.index("Examples") < short.index("--data TEXT"), short
    assert "--eps" in long and "--eps" not in short and "--help all" in short, short
    assert re.search(r"\n  --resume  +go on", short) and "-h,--help" not in short, short
    assert re.fullmatch(r"train_gpt \d+\.\d+\.\d+ \(Weft\)\n", train("--version").stdout)


def names_of_other_trainers(folder):
    train(*base(folder, "ours", "--steps", "3", "--lr", "3e-3", "--eval-every", "2"))
    train(*base(folder, "theirs", "--max_iters", "3", "--learning_rate=3e-3", "--eval-interval", "2"))
    assert metrics(f"{folder}/ours") == metrics(f"{folder}/theirs")
    refused(run("train_gpt", *base(folder, "x", "--batch_size", "4")), 2, "'--batch_size'",
            "nearest in meaning is --batch: it counts the rows")


def errors_of_a_file(folder):
    config = pathlib.Path(folder) / "c.toml"
    for content, said in (("lr = 1e-3\nlayrs = 3", f"(--help all lists all) ('{config}' line 2)"),
                          ("\nlr = -1", f"--lr: must be above 0, got -1 ('{config}' line 2)"),
                          ("seed = 1\n\nsteps = 'ten'",
                           f"--steps: must be a whole number, got 'ten' ('{config}' line 3)"),
                          ("[model]\nlayers = 3", f"'{config}' line 1: settings stand at the top"),
                          ("arch = \"llama\nlr = 1", "is a quote missing before the end of the line?")):
        config.write_text(content + "\n")
        refused(run("train_gpt", "--data", text(folder), "--config", config), 2, said)
    # An error in an overriding flag does not name the file.
    config.write_text("lr = 1e-3\n")
    done = run("train_gpt", "--data", text(folder), "--config", config, "--lr", "-2")
    refused(done, 2, "--lr: must be above 0, got -2")
    assert "c.toml" not in done.stderr, done.stderr


def evaluates_a_part(folder):
    def last(out, *flags):
        return metrics(f"{folder}/{out}")[-1] if train(*base(folder, out, "--steps", "2", *flags)) else None
    whole, part = last("whole", "--eval-tokens", "0"), last("part", "--eval-tokens", "320")
    assert whole["val_loss"] != part["val_loss"] and whole["loss"] == part["loss"], (whole, part)
    assert last("default")["val_loss"] == whole["val_loss"]  # the held-out tokens are fewer than the default
    # The first held-out tokens as a file of their own.
    words = pathlib.Path(text(folder)).read_bytes()
    held = len(words) - round(len(words) * 0.1)
    own, rest = pathlib.Path(folder) / "val.txt", pathlib.Path(folder) / "train.txt"
    own.write_bytes(words[held:held + 321])
    rest.write_bytes(words[:held])
    train("--data", rest, "--val-data", own, "--out", f"{folder}/file", *SMALL, "--steps", "2")
    assert metrics(f"{folder}/file")[-1]["val_loss"] == part["val_loss"]
    tokens = pathlib.Path(folder) / "val.bin"
    tokens.write_bytes(struct.pack("<400H", *range(400)))
    refused(run("train_gpt", *base(folder, "x", "--val-data", tokens)), 2,
            "--val-data: must be text as --data, got")


def several_shards(folder):
    words = pathlib.Path(text(folder)).read_bytes()
    tokens = struct.pack(f"<{len(words)}H", *words)
    parts = [pathlib.Path(folder) / f"part{i}.bin" for i in range(3)]
    for path, (first, last) in zip(parts, ((0, 5000), (5000, 5002), (5002, len(words)))):
        path.write_bytes(tokens[2 * first:2 * last])
    more = [*SMALL, "--steps", "3"]
    train("--data", text(folder), "--out", f"{folder}/text", *more)
    train("--data", *parts, "--out", f"{folder}/shards", *more)
    train("--data", ",".join(map(str, parts)), "--out", f"{folder}/list", *more)
    for out in ("shards", "list"):
        assert metrics(f"{folder}/text") == metrics(f"{folder}/{out}"), out
    configs = [pathlib.Path(folder, out, "config.toml").read_text().splitlines()[0] for out in ("shards", "list")]
    assert configs[0] == configs[1] and configs[0].count(".bin") == 3, configs
    said = train("--data", *parts, "--out", f"{folder}/bits", *more, "--bytes-per-token", "2.5").stdout
    nats, bits = re.search(r"validation loss ([\d.]+) .* ([\d.]+) bits per byte", said).groups()
    assert abs(float(bits) - float(nats) / math.log(2) / 2.5) < 6e-4, said
    refused(run("train_gpt", "--data", text(folder), parts[0], "--out", f"{folder}/x"), 2,
            "--data: must be text files or .bin files, got 1 of 2 with tokens")


def samples(folder):
    plain = train(*base(folder, "plain", "--steps", "6")).stdout
    for i, more in enumerate(([], ["--arch", "llama", "--mtp", "1"], ["--pattern", "da", "--arch", "llama"],
                              ["--ranks", "2", "--zero"], ["--dtype", "bf16"])):
        said = train(*base(folder, f"{i}", "--steps", "6", "--sample-every", "2", *more)).stdout
        assert re.findall(r"step +(\d+)/6  a sample:\n  ", said) == ["2", "4", "6"], said
    assert "a sample" not in plain
    # Sampling does not change training.
    assert metrics(f"{folder}/plain") == metrics(f"{folder}/0")
    once, twice = (checkpoint_bytes(f"{folder}/{out}", 6) for out in ("plain", "0"))
    assert once and once == twice
    refused(run("train_mlp", "--out", f"{folder}/mlp", "--sample-every", "5"), 2, "--sample-every: needs a model")


def keeps_the_best(folder):
    """The held-out text differs from the training text, so that the validation loss rises again."""
    own = pathlib.Path(folder) / "val.txt"
    own.write_bytes(bytes(range(32, 127)) * 10)
    args = base(folder, "run", "--val-data", own, "--lr", "0.03", "--eval-every", "2", "--keep-best", "--schedule",
                "constant", "--warmup", "0")
    done = train(*args, "--steps", "20")
    assert f"best checkpoint  {folder}/run/best" in done.stdout, done.stdout

    def check(rows):
        losses = {row["step"]: row["val_loss"] for row in rows if "val_loss" in row}
        best = min(losses, key=losses.get)
        folders = [p.name for p in pathlib.Path(folder, "run/best/checkpoints").glob("step_*")]
        assert folders == [f"step_{best:08d}"] and best < max(losses), (folders, losses)

    check(metrics(f"{folder}/run"))
    # A resumed run keeps the best loss so far.
    train(*args, "--steps", "30", "--resume")
    check(metrics(f"{folder}/run"))
    made = run("generate", "--checkpoint", f"{folder}/run/best", "--prompt", "the", "--tokens", "4")
    assert made.returncode == 0 and made.stdout.startswith("the"), made.stderr


def warns(folder):
    def warnings(*flags):
        said = train(*base(folder, "none", "--dry-run", *flags)).stdout.splitlines()
        return [line.split(None, 1)[1] for line in said if line.startswith("warning ")]
    assert warnings("--steps", "100") == []
    assert warnings("--steps", "100", "--vocab", "50257") == \
        ["--vocab 50,257: the bytes tokenizer has 256 tokens only"]
    rows = (len(pathlib.Path(text(folder)).read_bytes()) * 9 // 10) // 32
    assert re.fullmatch(r"--batch 2,000 is more than the \d+ rows of the data",
                        "".join(warnings("--steps", "100", "--batch", "2000"))), rows
    assert warnings("--steps", "2") == ["evaluations take longer than the training; see --eval-tokens"]
    assert warnings("--steps", "100", "--eval-every", "1") == \
        ["evaluations take longer than the training; see --eval-tokens"]
    assert warnings("--steps", "100", "--eval-every", "1", "--eval-tokens", "200") == []


main([fits_the_terminal, plain_lines_in_a_pipe, resumes_by_its_folder, helps, names_of_other_trainers,
      errors_of_a_file, evaluates_a_part, several_shards, samples, keeps_the_best, warns])
