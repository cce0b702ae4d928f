"""The errors of trainers under a launcher: each reason once, with its ranks."""
import pathlib

from support import BIN, SMALL, main, run, text, train
from support_mpi import run_ranks


def said(ranks, *args, before=""):
    """The status and error lines of a trainer's ranks. `before`: shell commands that may use
    $rank."""
    script = f"rank=$OMPI_COMM_WORLD_RANK; {before}\nexec {BIN}/train_gpt \"$@\""
    done = run_ranks(ranks, "bash", "-c", script, "bash", *args)
    name = "train_gpt: "
    return done.returncode, [line.removeprefix(name) for line in done.stderr.splitlines()
                             if line.startswith(name)]


def errors_of_all_are_said_once(folder):
    base = ["--data", text(folder), *SMALL, "--threads", "1", "--steps", "2"]
    # Before the world exists, within it, and where one rank checks for all.
    assert said(4, "--lr", "0") == (2, ["--lr: must be above 0, got 0"])
    assert said(4, "--data", "nowhere") == (2, ["data: no file 'nowhere'"])
    status, lines = said(4, *base, "--out", f"{folder}/tp", "--tp", "3")
    assert status == 2 and len(lines) == 1 and not lines[0].startswith("rank"), lines
    out = ["--out", f"{folder}/damaged"]
    train(*base, *out, "--ranks", "4")
    for file in pathlib.Path(folder, "damaged", "checkpoints").glob("step_*/optim-r002.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    status, lines = said(4, *base, *out, "--steps", "3", "--resume")
    assert status == 1 and len(lines) == 1, lines
    assert lines[0].startswith("checkpoint: '") and "optim-r002.safetensors' must have" in lines[0], lines


def errors_of_some_name_their_ranks(folder):
    base = ["--data", text(folder), *SMALL, "--threads", "1", "--steps", "2", "--out"]
    pathlib.Path(folder, "elsewhere").mkdir()
    # Some ranks do not find a file: before they create their world ...
    pathlib.Path(folder, "book.txt").write_text(pathlib.Path(text(folder)).read_text())
    away = f"cd {folder}; [ $rank != {{}} ] || cd elsewhere"
    data = ["--data", "book.txt", *base[2:], f"{folder}/data"]
    status, lines = said(4, *data, before=away.format(2))
    assert status != 0 and lines == ["rank 2: data: no file 'book.txt'"], lines
    # ... and after it; the others get the error in a collective and print nothing.
    train(*base, f"{folder}/whole")
    done = run("generate", "--checkpoint", f"{folder}/whole", "--export", f"{folder}/w.safetensors")
    assert done.returncode == 0, done
    weights = [*base, f"{folder}/weights", "--weights", "w.safetensors"]
    missing = "read: cannot open 'w.safetensors': No such file or directory"
    assert said(4, *weights, before=away.format(1)) == (1, ["rank 1: " + missing])
    odd = f"cd {folder}; [ $((rank % 2)) = 0 ] || cd elsewhere"
    assert said(4, *weights, before=odd) == (1, ["ranks 1, 3: " + missing])


def a_lost_rank_is_named_once(folder):
    base = ["--data", text(folder), *SMALL, "--threads", "1", "--steps", "1000000", "--out", f"{folder}/lost"]
    stop = "[ $rank != 2 ] || { sleep 4; kill -STOP $$; } &"
    status, lines = said(4, *base, "--timeout", "2", before=stop)
    assert status != 0 and len(lines) == 1, lines
    assert "rank 2 did not come within 2 s: it does not answer, so it was stopped or has died" in lines[0], (
        lines)


if __name__ == "__main__":
    main([errors_of_all_are_said_once, errors_of_some_name_their_ranks, a_lost_rank_is_named_once])
