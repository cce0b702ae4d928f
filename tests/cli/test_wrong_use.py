"""Wrong use of train_gpt and generate: one clear line on stderr, the documented exit status, and
existing checkpoints stay intact."""
import os
import pathlib
import resource
import signal
import subprocess
import time

from support import (BIN, SMALL, checkpoint_bytes, interrupt, main, metrics, refused, run, start, text,
                     train)


def base(folder, *args):
    return ["--data", text(folder), "--out", f"{folder}/run", "--steps", "4", *SMALL, *args]


def unknown_flag(folder):
    refused(run("train_gpt", *base(folder), "--layrs", "3"), 2, "--layrs", "--layers")
    config = pathlib.Path(folder) / "c.toml"
    config.write_text("layrs = 3\n")
    refused(run("train_gpt", *base(folder), "--config", config), 2, "layrs", "--layers")


def reserved_flag(folder):
    refused(run("train_gpt", *base(folder), "--pp", "2"), 2, "--pp", "does not exist yet")


def missing_file(folder):
    refused(run("train_gpt", "--data", f"{folder}/none.txt", "--out", f"{folder}/run"), 2,
            "none.txt", "no file")


def empty_file(folder):
    path = pathlib.Path(folder) / "empty.txt"
    path.write_text("")
    refused(run("train_gpt", "--data", path, "--out", f"{folder}/run"), 2, "empty.txt")


def data_too_short(folder):
    path = pathlib.Path(folder) / "short.txt"
    path.write_text("only a few words")
    refused(run("train_gpt", "--data", path, "--out", f"{folder}/run", "--seq", "256"), 2, "seq")


def heads_do_not_divide(folder):
    refused(run("train_gpt", *base(folder), "--heads", "3"), 2, "heads", "32", "3")


def bad_values(folder):
    refused(run("train_gpt", *base(folder), "--lr", "-1"), 2, "--lr", "-1")
    refused(run("train_gpt", *base(folder), "--lr", "fast"), 2, "--lr", "fast")
    refused(run("train_gpt", *base(folder), "--dropout", "1.5"), 2, "--dropout", "1.5")
    refused(run("train_gpt", *base(folder), "--micro-batch", "3"), 2, "--micro-batch", "3")
    refused(run("train_gpt", *base(folder), "--arch", "bert"), 2, "--arch", "bert")
    refused(run("train_gpt", *base(folder), "--lr", "inf"), 2, "--lr", "finite")
    refused(run("train_gpt", *base(folder), "--master-weights", "remainder"), 2, "--dtype bf16", "f32")
    refused(run("train_gpt", *base(folder), "--master-weights", "none"), 2, "--master-weights", "none")
    refused(run("train_gpt", *base(folder), "--steps", "9" * 20), 2, "--steps")
    for kind in ("gpt2:file", "sp:file", "words"):
        refused(run("train_gpt", *base(folder), "--tokenizer", kind), 2, "--tokenizer: must be", kind)
    refused(run("train_gpt", *base(folder), "--device", "cuda:15"), 2, "cuda:15")


def vocabulary_too_small(folder):
    refused(run("train_gpt", *base(folder), "--vocab", "60"), 2, "60", "vocab")


def no_data(folder):
    refused(run("train_gpt", "--out", f"{folder}/run"), 2, "--data")


def holds_a_run(folder):
    train(*base(folder))
    before = checkpoint_bytes(f"{folder}/run", 4)
    refused(run("train_gpt", *base(folder)), 2, "--resume")
    assert checkpoint_bytes(f"{folder}/run", 4) == before


def damaged_checkpoint(folder):
    train(*base(folder, "--save-every", "2"))
    model = pathlib.Path(folder) / "run/checkpoints/step_00000004/model-r000.safetensors"
    data = bytearray(model.read_bytes())
    data[-5] ^= 1
    model.write_bytes(data)
    # The previous checkpoint still verifies: training continues from it and reports this.
    done = run("train_gpt", *base(folder, "--resume", "--steps", "6"))
    assert done.returncode == 0 and "step_00000004" in done.stderr, done.stderr
    assert [m["step"] for m in metrics(f"{folder}/run")] == [1, 2, 3, 4, 5, 6]


def every_checkpoint_damaged(folder):
    train(*base(folder))
    model = pathlib.Path(folder) / "run/checkpoints/step_00000004/model-r000.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    refused(run("train_gpt", *base(folder, "--resume")), 1, "model-r000.safetensors")
    refused(run("generate", "--checkpoint", f"{folder}/run"), 1, "model-r000.safetensors")


def checkpoint_of_another_shape(folder):
    train(*base(folder))
    config = pathlib.Path(folder) / "run/config.toml"
    before = config.read_text()
    refused(run("train_gpt", *base(folder, "--resume", "--dim", "64", "--steps", "8")), 2,
            "another model", "dim", "32", "64")
    assert config.read_text() == before


def unwritable_folder(folder):
    blocker = pathlib.Path(folder) / "file"
    blocker.write_text("")
    refused(run("train_gpt", "--data", text(folder), "--out", blocker / "run", *SMALL), 1, "file")


def injected_nan(folder):
    args = base(folder, "--save-every", "2", "--steps", "6")
    done = run("train_gpt", *args, env={"WEFT_TEST_INJECT_NAN": "4"})
    refused(done, 3, "step 4", "embed.weight")
    assert [m["step"] for m in metrics(f"{folder}/run")] == [1, 2, 3]
    train(*args, "--resume")
    assert [m["step"] for m in metrics(f"{folder}/run")] == [1, 2, 3, 4, 5, 6]


def full_disk(folder):
    args = base(folder, "--save-every", "2", "--steps", "4")
    train(*base(folder, "--steps", "2"))
    before = checkpoint_bytes(f"{folder}/run", 2)
    done = run("train_gpt", *args, "--resume", env={"WEFT_TEST_DISK_FULL_AFTER": "100000"})
    refused(done, 1, "No space left on device")
    assert checkpoint_bytes(f"{folder}/run", 2) == before
    train(*args, "--resume")
    assert checkpoint_bytes(f"{folder}/run", 4)


def out_of_memory(folder):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    done = subprocess.run([BIN / "train_gpt", *base(folder, "--batch", "1024", "--seq", "512")],
                          capture_output=True, text=True, preexec_fn=limit,
                          env={**os.environ, "OMP_NUM_THREADS": "2"})
    refused(done, 1, "memory")


def damaged_config(folder):
    config = pathlib.Path(folder) / "c.toml"
    for content, parts in (('window = "three"', ("--window", "three")),
                           ("window = 3.5", ("--window", "3.5")),
                           ("layers = [", ("line 1", "c.toml")),
                           ("lr = 1e-3\nlayers 3", ("line 2", "c.toml")),
                           ("layers = 3\nlayers = 4", ("line 2", "layers")),
                           ("[model]\nlayers = 3", ("'model'",)),
                           ("day = 2020-01-01", ("'day'",)),
                           ("config = 'more.toml'", ("another config file",)),
                           ("pp = 2", ("--pp", "does not exist yet")),
                           ("arch = 'bert'", ("--arch", "bert"))):
        config.write_text(content + "\n")
        refused(run("train_gpt", *base(folder), "--config", config), 2, *parts)
    refused(run("train_gpt", "--config", f"{folder}/none.toml"), 2, "no file", "none.toml")
    refused(run("train_gpt", "--config", folder), 2, folder, "folder")
    refused(run("generate", "--config", f"{folder}/none.toml"), 2, "no file", "none.toml")


def wrong_uses_of_generate(folder):
    train(*base(folder, "--steps", "1"))
    good, empty = f"{folder}/run", pathlib.Path(folder) / "empty"
    empty.mkdir()
    for args, parts in (([], ("--checkpoint",)),
                        (["--checkpoint", f"{folder}/none"], ("no checkpoint", "none")),
                        (["--checkpoint", empty], ("no checkpoint", "empty")),
                        (["--checkpoint", good, "--topp", "0"], ("--topp", "(0, 1]", "0")),
                        (["--checkpoint", good, "--topp", "1.5"], ("--topp", "1.5")),
                        (["--checkpoint", good, "--temperature", "-1"], ("--temperature", "-1")),
                        (["--checkpoint", good, "--temperature", "nan"], ("--temperature",)),
                        (["--checkpoint", good, "--topk", "-1"], ("--topk", "-1")),
                        (["--checkpoint", good, "--tokens", "0"], ("--tokens", "at least 1")),
                        (["--checkpoint", good, "--prompt", ""], ("--prompt", "empty")),
                        (["--checkpoint", good, "--seed", "-2"], ("--seed", "-2")),
                        (["--checkpoint", good, "--threads", "-2"], ("--threads", "-2")),
                        (["--checkpoint", good, "--tokns", "3"], ("--tokns", "--tokens")),
                        (["--checkpoint", good, "--speculative"], ("--speculative", "--mtp 1")),
                        (["--model", folder], ("is not a Hugging Face folder", "config.json")),
                        (["--model", folder, "--checkpoint", good], ("--model", "one of them"))):
        done = run("generate", *args)
        refused(done, 2, *parts)
        assert done.stdout == "", done.stdout
    wide = f"{folder}/wide"
    train(*base(folder, "--steps", "1", "--vocab", "300", "--out", wide))
    refused(run("generate", "--checkpoint", wide), 2, "300", "256")


def interrupt_saves(folder):
    # Several times, because the moment of the signal is random.
    for i in range(10):
        interrupt("train_gpt", f"{folder}/run{i}", text(folder),
                  sent=signal.SIGHUP if i % 3 == 2 else signal.SIGINT)


def outlives_its_terminal(folder):
    """Under nohup SIGHUP is ignored and stays ignored."""
    nohup = start("train_gpt", f"{folder}/run", text(folder),
                  preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    nohup.send_signal(signal.SIGHUP)
    before = len(metrics(f"{folder}/run"))
    deadline = time.time() + 60
    while len(metrics(f"{folder}/run")) < before + 3:
        assert nohup.poll() is None and time.time() < deadline, nohup.stderr.read()
        time.sleep(0.01)
    nohup.kill()
    nohup.communicate()


def outlives_its_reader(folder):
    """A run continues to its end when its output is no longer read, and reports this once."""
    process = subprocess.Popen([BIN / "train_gpt", *base(folder, "--log-every", "1")], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.wait(60)
    refused(subprocess.CompletedProcess("", process.returncode, "", errors), 0, "Broken pipe", "goes on")
    assert checkpoint_bytes(f"{folder}/run", 4)
    closed = subprocess.run([BIN / "train_gpt", *base(folder, "--out", f"{folder}/closed")],
                            preexec_fn=lambda: (os.close(1), os.close(2)))
    assert closed.returncode == 0 and checkpoint_bytes(f"{folder}/closed", 4)
    assert pathlib.Path(f"{folder}/closed/lock").read_text().count("\n") == 1


def one_run_a_folder(folder):
    """A second run is refused while the first one lives, and can resume as soon as it was
    killed."""
    first = start("train_gpt", f"{folder}/run", text(folder), "--save-every", "1")
    refused(run("train_gpt", *base(folder, "--resume", "--steps", "100000")), 2,
            f"'{folder}/run' is in use by process {first.pid} on host '")
    first.kill()
    first.communicate()
    train(*base(folder, "--resume", "--steps", str(len(metrics(f"{folder}/run")) + 3)))
    steps = [row["step"] for row in metrics(f"{folder}/run")]
    assert steps == list(range(1, len(steps) + 1)), steps


main([unknown_flag, reserved_flag, missing_file, empty_file, data_too_short, heads_do_not_divide,
      bad_values, vocabulary_too_small, no_data, holds_a_run, damaged_checkpoint,
      every_checkpoint_damaged, checkpoint_of_another_shape, unwritable_folder, injected_nan,
      full_disk, out_of_memory, damaged_config, wrong_uses_of_generate, interrupt_saves,
      outlives_its_terminal, outlives_its_reader, one_run_a_folder])
