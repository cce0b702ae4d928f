"""The errors of trainers under a launcher: each reason once, with its ranks."""
import pathlib

from support import BIN, SMALL, main, run, text, train
from support_faults import Job
from support_mpi import command


def said(ranks, *args, before="", lost=None):
    """The status and error lines of a trainer's ranks. `before`: shell commands that may use
    $rank. `lost`: of a job that loses a rank, a file that shows when, and after how many seconds the others notice."""
    script = f"rank=$OMPI_COMM_WORLD_RANK; {before}\nexec {BIN}/train_gpt \"$@\""
    job = Job(command(ranks, "bash", "-c", script, "bash", *args))
    done = job.end()
    if lost:
        job.check_time("full disk" if "DISK" in before else "stop", *lost)
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


def what_ranks_do_not_share_is_found_at_the_start(folder):
    base = ["--data", text(folder), *SMALL, "--threads", "1", "--steps", "2"]
    away = pathlib.Path(folder, "away")
    away.mkdir()
    enter = f"cd {folder}; [ $rank != 2 ] || cd away"
    status, lines = said(4, *base, "--out", "apart", before=enter)
    assert (status, lines) == (2, [
        "--out: 'apart' must be a folder that all ranks share, and rank 2 does not see what rank 0 "
        "writes there; name one on a shared file system"]), (status, lines)
    assert not pathlib.Path(folder, "apart", "metrics.jsonl").exists()
    # Copies of the data on the machines' own disks, of which one is older.
    words = pathlib.Path(text(folder)).read_text()
    for place, copy in ((folder, words), (away, words.replace("dog", "pig"))):
        pathlib.Path(place, "copy.txt").write_text(copy)
    status, lines = said(4, "--data", "copy.txt", *base[2:], "--out", f"{folder}/copies", before=enter)
    assert status == 2 and len(lines) == 1, (status, lines)
    assert "all ranks must read the same, and rank 2" in lines[0], lines


def data_that_change_on_one_rank_end_all(folder):
    """The steps done so far are saved."""
    away = pathlib.Path(folder, "away")
    away.mkdir()
    for place in (folder, away):
        pathlib.Path(place, "copy.bin").write_bytes(bytes(i % 7 * (1 - i % 2) for i in range(20000)))  # u16
    out = pathlib.Path(folder, "changed")
    change = f"(until [ -s {out}/metrics.jsonl ]; do sleep 0.1; done; echo more >>copy.bin) &"
    status, lines = said(2, "--data", "copy.bin", "--vocab", "8", *SMALL, "--threads", "1", "--steps", "20000", "--out", out,
                         before=f"cd {folder}; [ $rank != 1 ] || {{ cd away; {change} }}")
    assert status == 1 and "rank 1: data: 'copy.bin' must not change while it is read, but was written to" in lines, lines
    assert len(list(out.glob("checkpoints/step_*"))) == 1


def launchers_that_mpi_does_not_know(folder):
    """Each process would be a run of its own, in the same folder."""
    base = ["--data", text(folder), *SMALL, "--steps", "2", "--out", f"{folder}/alone"]
    for rank in (0, 3):
        said_once = 1 if rank == 0 else 0
        # srun without a plugin for MPI.
        done = run("train_gpt", *base, env={"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": str(rank)})
        assert done.returncode == 2, done
        assert done.stderr.count("train_gpt: launcher: it started 8 processes, and MPI does not know "
                                 "of it") == done.stderr.count("\n") == said_once, done.stderr
        # A plugin of another MPI: each process is rank 0 of 1.
        done = run("train_gpt", *base, env={"PMI_RANK": str(rank), "PMI_SIZE": "8"})
        assert done.returncode == 2, done
        assert done.stderr.count("train_gpt: mpi_world: the launcher started 8 processes, and MPI "
                                 "connects 1 of them") == said_once, done.stderr
    done = run("train_gpt", *base, env={"WORLD_SIZE": "4"})
    assert done.returncode == 2 and done.stderr == (
        "train_gpt: launcher: WORLD_SIZE names several ranks and RANK is not set, so each process "
        "would be a run of its own; set both, or neither\n"), done
    assert not pathlib.Path(folder, "alone").exists()


def a_full_disk_of_one_rank_names_it(folder):
    """No rank ends the checkpoint, and the one before stays the newest."""
    out = f"{folder}/full"
    base = ["--data", text(folder), *SMALL, "--threads", "1", "--out", out, "--save-every", "2", "--zero"]
    assert said(2, *base, "--steps", "2") == (0, [])
    status, lines = said(2, *base, "--steps", "6", "--resume",
                         before="[ $rank != 1 ] || export WEFT_TEST_DISK_FULL_AFTER=2000",
                         lost=(f"{out}/metrics.jsonl", 0))
    assert status == 1 and len(lines) == 1, lines
    assert lines[0].startswith("save_checkpoint: rank 1: write: cannot write '"), lines
    assert lines[0].endswith("model-r001.safetensors': No space left on device"), lines
    assert [p.name for p in pathlib.Path(out, "checkpoints").glob("step_*")] == ["step_00000002"]
    done = run("generate", "--checkpoint", out, "--prompt", "the", "--tokens", "4", "--seed", "1")
    assert done.returncode == 0, done


def a_lost_rank_is_named_once(folder):
    base = ["--data", text(folder), *SMALL, "--threads", "1", "--steps", "1000000", "--out", f"{folder}/lost"]
    stop = f"[ $rank != 2 ] || {{ sleep 4; touch {folder}/fault; kill -STOP $$; }} &"
    status, lines = said(4, *base, "--timeout", "2", before=stop, lost=(f"{folder}/fault", 2))
    assert status != 0 and len(lines) == 1, lines
    assert "rank 2 did not come within 2 s: it does not answer, so it was stopped or has died" in lines[0], (
        lines)


if __name__ == "__main__":
    main([errors_of_all_are_said_once, errors_of_some_name_their_ranks,
          what_ranks_do_not_share_is_found_at_the_start, data_that_change_on_one_rank_end_all,
          launchers_that_mpi_does_not_know,
          a_full_disk_of_one_rank_names_it, a_lost_rank_is_named_once])
