#!/usr/bin/env python3
"""Completion files and manual pages that programs write from the tables of their flags."""
import re
import shutil
import subprocess

from support import BIN, main, refused, run

PROGRAMS = ("train_gpt", "train_moe", "generate", "chat", "evaluate", "convert", "info", "plan", "tokenize",
            "train_tokenizer", "weft_launch")


def written(program, *flags):
    done = run(program, *flags)
    assert done.returncode == 0 and not done.stderr, (program, flags, done)
    return done.stdout


def complete(program, *words):
    """What bash offers for the last word."""
    script = written(program, "--completion", "bash") + f"""
COMP_WORDS=({program} {" ".join(f"'{w}'" for w in words)}); COMP_CWORD={len(words)}
_{program}; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-eu"], input=script, capture_output=True, text=True, cwd=BIN, timeout=60)
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout.split()


def bash_completes(folder):
    del folder
    assert complete("train_gpt", "--pre") == ["--preset", "--pre-softmax"], complete("train_gpt", "--pre")
    assert complete("train_gpt", "--preset", "gpt2-1") == ["gpt2-124m", "gpt2-1558m"]
    assert complete("train_gpt", "--arch", "") == ["gpt2", "llama"]
    assert complete("train_moe", "--router", "=", "sig") == ["sigmoid"]
    assert complete("train_gpt", "--recompute", "=") == ["none", "norms", "attention", "mlp", "experts", "gathered",
                                                         "selective", "full"]
    assert complete("convert", "--gguf-type", "q") == ["q8_0"]
    assert complete("train_gpt", "--lr", "") == [] == complete("weft_launch", "-n", "")
    assert {"-n", "-h"} <= set(complete("weft_launch", "-")) and "-n" not in complete("info", "-")
    assert "train_gpt" in complete("train_gpt", "--out", "train_g")  # a path
    assert "--pp" not in complete("train_gpt", "--")  # refused


def every_flag_is_there(folder):
    """Flags of --help, in each file, with nothing that the shells or roff complain of."""
    checks = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "-n"]}
    for program in PROGRAMS:
        shown = re.sub(r"\nReserved.*?\n\n", "\n\n", written(program, "--help", "all"), flags=re.S)
        found = re.findall(r"^  (?:(-[a-z]),)?(--[a-z0-9-]+)", shown, re.M)
        flags = [flag for forms in found for flag in forms if flag]
        assert ("-n" in flags) == (program == "weft_launch"), (program, flags)
        assert len(flags) >= 5, (program, flags)
        for shell, command in checks.items():
            text = written(program, "--completion", shell)
            for flag in flags:
                want = flag
                if shell == "fish":
                    want = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                assert re.search(re.escape(want) + r"(?![a-z0-9-])", text), (program, shell, flag)
            if shutil.which(command[0]):
                path = f"{folder}/{program}.{shell}"
                with open(path, "w") as file:
                    file.write(text)
                done = subprocess.run([*command, path], capture_output=True, text=True, timeout=60)
                assert done.returncode == 0 and not done.stderr, done
        page = written(program, "--man")
        for flag in flags:
            assert '\\fB' + flag.replace('-', '\\-') + '\\fR' in page, (program, flag)
        if shutil.which("groff"):
            done = subprocess.run(["groff", "-man", "-Tascii", "-ww"], input=page, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0 and not done.stderr and "a lost rank" in done.stdout, done.stderr


def wrong_use(folder):
    del folder
    refused(run("train_gpt", "--completion", "tcsh"), 2, "--completion: must be one of bash, zsh, fish, got 'tcsh'")
    refused(run("info", "--completion"), 2, "--completion", "got ''")


main([bash_completes, every_flag_is_there, wrong_use])
