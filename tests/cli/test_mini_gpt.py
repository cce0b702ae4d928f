"""mini_gpt trains on a text, its loss falls, and it prints a sample; wrong use gives one line."""
import pathlib
import re

from support import main, run, text


def trains_and_samples(folder):
    done = run("mini_gpt", text(folder), "12")
    assert done.returncode == 0, done.stderr
    losses = [float(x) for x in re.findall(r"^step +\d+  loss (\S+)$", done.stdout, re.M)]
    assert len(losses) == 2 and 5 < losses[0] < 6.2 and losses[1] < losses[0] - 1, losses
    sample = done.stdout[done.stdout.index("It is "):]
    assert len(sample) >= 200, sample  # 306 bytes; some may join into one character


def wrong_uses(folder):
    short = pathlib.Path(folder) / "short.txt"
    short.write_text("too short")
    for args, part in (([], "usage: mini_gpt TEXT_FILE [STEPS]"),
                       ([f"{folder}/none.txt"], "none.txt"),
                       ([short], "got 9"),
                       ([text(folder), "many"], "STEPS must be a number of at least 1, got 'many'"),
                       ([text(folder), "12x"], "got '12x'"),
                       ([text(folder), "0"], "STEPS must be a number of at least 1, got '0'")):
        done = run("mini_gpt", *args)
        lines = done.stderr.strip().splitlines()
        assert done.returncode == 2 and len(lines) == 1 and part in lines[0], (args, done)


main([trains_and_samples, wrong_uses])
