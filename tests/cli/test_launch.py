"""scripts/launch.sh: flags, environment, logs, signals, and jobs that it starts again."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from support import BIN, SMALL, main, metrics, refused, run, text, train
from support_ranks import agree, base, same_bits
from support_tcp import LAUNCH, PATIENT, command, environment, free_port, launch

SAVES = ["--save-every", "1", "--schedule", "constant"]


def wrong_use(folder):
    for flags, *parts in (
            ([], "-n: must be 1 to 4096, got 0"), (["-n", "0"], "-n: must be 1 to 4096, got 0"),
            (["-n", "two"], "must be a whole number, got 'two'"), (["-n", "2", "--grase", "5"], "unknown flag '--grase'; the nearest is --grace"),
            (["-n", "2", "--restarts", "-1"], "--restarts: must be 0 to 1000000, got -1"),
            (["-n", "2", "--elastic"], "--elastic: needs --restarts of at least 1, got 0"),
            (["-n", "2", "--nodes", "2"], "--nodes: needs --master HOST:PORT and a secret in WEFT_TOKEN"),
            (["-n", "2", "--nodes", "2", "--node", "2"], "--node: must be below --nodes 2, got 2"),
            (["-n", "2", "--master", "here"], "--master: must be HOST:PORT, got 'here'")):
        refused(subprocess.run([str(LAUNCH), *flags, "true"], capture_output=True, text=True, env=environment()),
                2, "weft_launch: ", *parts)
    refused(subprocess.run([str(LAUNCH), "-n", "2"], capture_output=True, text=True, env=environment()), 2,
            "weft_launch: a program must follow the flags")
    refused(launch(2, "/nowhere/program"), 2, "weft_launch: there is no program /nowhere/program")
    refused(launch(2, "true", env={"MASTER_PORT": "none"}), 2,
            "weft_launch: MASTER_PORT: must be 0 to 65535, got 'none'")
    refused(launch(1, "true", flags=("--log-dir", "/proc/none")), 1, "weft_launch: ")
    empty = {"PATH": "/usr/bin:/bin", "WEFT_LAUNCH": "/nowhere"}
    copy = pathlib.Path(folder, "scripts", "launch.sh")
    copy.parent.mkdir()
    copy.write_bytes(LAUNCH.read_bytes())
    copy.chmod(0o755)
    refused(subprocess.run([str(copy), "-n", "2", "true"], capture_output=True, text=True,
                           env={**os.environ, **empty}), 2, "launch: there is no weft_launch")
    # The layout is the program's business, and it says so once.
    done = launch(2, BIN / "train_gpt", *base(folder, "never", "--batch", "3"))
    refused(done, 2, "train_gpt: --batch: must be a multiple of dp 2, got 3")
    done = launch(2, BIN / "train_gpt", *base(folder, "never", "--ranks", "2"))
    refused(done, 2, "train_gpt: --ranks: is for threads")
    done = launch(2, BIN / "train_gpt", *base(folder, "never", "--device", "meta"))
    refused(done, 2, "train_gpt: --device: meta plans for any number of ranks in one process")
    refused(run("train_gpt", *base(folder, "never", "--backend", "tcp")), 2,
            "tcp_world: RANK and WORLD_SIZE must be set; scripts/launch.sh -n RANKS PROGRAM sets them")


def environment_and_status(folder):
    """A launcher above this one has set variables of its own ranks."""
    show = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR ${#WEFT_TOKEN} $WEFT_RESTART ${PMI_RANK-no}"
    done = launch(3, "bash", "-c", show, env={"PMI_RANK": "0"})
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [f"{r} 3 {r} 3 127.0.0.1 32 0 no" for r in range(3)], done.stdout
    done = launch(2, "bash", "-c", show, flags=("--nodes", "2", "--node", "1", "--master", "[::1]:77"),
                  env={"WEFT_TOKEN": "1234"})
    assert sorted(done.stdout.splitlines()) == [f"{2 + r} 4 {r} 2 ::1 4 0 no" for r in range(2)], done.stdout
    done = launch(2, "bash", "-c", "echo $MASTER_PORT", env={"MASTER_PORT": "88"})
    assert done.stdout == "88\n88\n", done
    done = launch(3, "bash", "-c", "if [ $RANK = 1 ]; then exit 7; fi; sleep 0.3; exit 8")
    assert (done.returncode, done.stderr) == (7, ""), done
    # The others have some time to end; what they have started ends as well.
    begin = time.time()
    done = launch(2, "bash", "-c", "if [ $RANK = 1 ]; then exit 7; fi; sleep 1000; true", flags=("--grace", "0.5"))
    assert done.returncode == 7 and time.time() - begin < 30, done
    assert done.stderr == "weft_launch: rank 0 did not end within 0.5 s after rank 1: killed\n", done.stderr
    done = launch(2, "bash", "-c", "kill -SEGV $$")
    assert done.returncode == 139 and "was killed by signal 11\n" in done.stderr, done


def logs(folder):
    say = "echo out $RANK; echo err $RANK >&2; [ $WEFT_RESTART = 1 ] || exit 1"
    done = launch(2, "bash", "-c", say, "bash", flags=("--log-dir", f"{folder}/a/b", "--restarts", "1"))
    assert done.returncode == 0, done
    assert done.stdout == "out 0\n" * 2, done.stdout
    assert done.stderr.count("err 0\n") == done.stderr.count("err 1\n") == 2, done.stderr
    for r in range(2):
        lines = pathlib.Path(folder, "a", "b", f"rank_{r}.log").read_text().splitlines()
        assert sorted(lines) == [f"err {r}"] * 2 + [f"out {r}"] * 2, lines


def outlives_its_reader(folder):
    """A closed output ends neither the launcher nor the run, and the ranks have signals as usual."""
    process = subprocess.Popen(
        command(2, BIN / "train_gpt", *base(folder, "run", "--log-every", "1"), flags=("--log-dir", f"{folder}/logs")),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=60) == 0, errors
    done = launch(1, "bash", "-c", "kill -PIPE $$; echo survived")
    assert done.returncode == 141 and "survived" not in done.stdout, done


def stops(folder, name, *signals, group=False, gap_s=0.005, handler=signal.SIG_DFL):
    process = subprocess.Popen(
        command(2, BIN / "train_gpt", "--data", text(folder), "--out", f"{folder}/{name}", *SMALL, "--threads", "1",
                "--steps", "100000"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, handler))
    log = pathlib.Path(folder, name, "metrics.jsonl")
    deadline = time.time() + 60
    while not (log.exists() and log.stat().st_size > 0):
        assert time.time() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.01)
    for sent in signals:
        os.killpg(process.pid, sent) if group else process.send_signal(sent)
        time.sleep(gap_s)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, (process.returncode, errors)
    last = metrics(f"{folder}/{name}")[-1]["step"]
    assert pathlib.Path(folder, name, "checkpoints", f"step_{last:08d}").exists(), last


def signals(folder):
    """Ctrl-C reaches each rank once, and a terminal that closes does the same."""
    stops(folder, "ctrl-c", signal.SIGINT, group=True)
    for gap_s in (0.005, 0.05):  # the later ones reach ranks that have saved
        stops(folder, f"hangup-{gap_s}", *3 * [signal.SIGHUP], gap_s=gap_s)
    # Under nohup the first two change nothing.
    stops(folder, "nohup", signal.SIGHUP, signal.SIGHUP, signal.SIGINT, gap_s=0.05, handler=signal.SIG_IGN)
    begin = time.time()
    process = subprocess.Popen(command(2, "bash", "-c", "trap '' INT TERM; echo; sleep 1000 & wait; wait"),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    process.stdout.readline()
    process.stdout.readline()
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 137 and time.time() - begin < 60, (process.returncode, errors)


# The victim is killed in the first start only.
def dies(victim, step, phase):
    return ["bash", "-c", f"[ $WEFT_RESTART != 0 ] || export WEFT_TEST_KILL={victim}:{step}:{phase}; exec \"$@\"", "bash"]


def starts_again(folder):
    """Killed in forward, in a save and in the gather of an FSDP unit; the run ends with the bits of an undisturbed one."""
    for layout in "--zero", "--fsdp":
        train(*base(folder, f"calm{layout}", *SAVES, layout, "--ranks", "2"))
    for i, phase, layout in (0, "forward", "--zero"), (1, "save:3", "--zero"), (1, "gather:2", "--fsdp"):
        calm, out = f"calm{layout}", phase
        done = launch(2, *dies(i, 4, phase), BIN / "train_gpt", *base(folder, out, *SAVES, layout),
                      flags=("--restarts", "2", "--log-dir", f"{folder}/logs_{phase}", *PATIENT))
        assert done.returncode == 0, done.stderr
        if layout == "--fsdp":
            # The second if the rank that goes on was computing.
            assert re.search(r"all_gather \d+ of group [^:]*: rank 1 was lost: |: rank 1 was lost: [^;]*; "
                             r"rank 0 was in no collective: .*all_gather \d+ of group ", done.stderr), done.stderr
        assert done.stderr.count("weft_launch: restart 1 of 2 with 2 ranks, as rank "
                                 f"{i} was killed by signal 9\n") == 1, done.stderr
        assert "resume" in done.stdout and "restart 2" not in done.stderr, done
        same_bits(folder, calm, out)
        agree(folder, calm, out, 0)
        assert len(list(pathlib.Path(folder, out, "flight").iterdir())) == 1  # of the rank that went on


def starts_again_on_each_machine(folder):
    """A launcher for each machine: both start their ranks again, which meet at the same port."""
    train(*base(folder, "calm", *SAVES, "--ranks", "2"))
    master = f"localhost:{free_port()}"
    machines = [subprocess.Popen(
        command(1, *dies(1, 3, "backward"), BIN / "train_gpt", *base(folder, "machines", *SAVES), flags=(
            "--nodes", "2", "--node", str(node), "--master", master, "--restarts", "1")),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment({"WEFT_TOKEN": "secret"}))
                for node in (0, 1)]
    for node, machine in enumerate(machines):
        _, errors = machine.communicate(timeout=120)
        assert machine.returncode == 0 and "restart 1 of 1 with 2 ranks, as rank " in errors, (node, errors)
    same_bits(folder, "calm", "machines")


def does_not_start_again(folder):
    """After a user's mistake, Ctrl-C, or too often."""
    count = f"echo >> {folder}/count"
    for status, starts in ((2, 1), (3, 1), (130, 1), (1, 3), (0, 1)):
        pathlib.Path(folder, "count").unlink(missing_ok=True)
        done = launch(1, "bash", "-c", f"{count}; exit {status}", flags=("--restarts", "2"))
        assert done.returncode == status, (status, done)
        assert len(pathlib.Path(folder, "count").read_text().splitlines()) == starts, (status, done.stderr)


def a_mistake_on_one_rank_does_not_start_again(folder):
    """The other ranks lose a peer and end with status 1, often earlier."""
    words = " ".join(map(str, [BIN / "train_gpt", *base(folder, "mistake")]))
    for victim in (0, 1):
        done = launch(2, "bash", "-c", f"exec {words} $([ $RANK = {victim} ] && echo --layrs 2)",
                      flags=("--restarts", "2"))
        assert done.returncode == 2 and "again" not in done.stderr and f"rank {victim}: unknown flag" in done.stderr, done
    # Whichever ends first.
    for first in (0, 1):
        end = f"[ $RANK = {first} ] || sleep 0.3; exit $((RANK + 1))"
        assert launch(2, "bash", "-c", end, flags=("--restarts", "1")).returncode == 2


def with_fewer_ranks(folder):
    """Four ranks lose one: three do not divide the batch of four rows, two do."""
    train(*base(folder, "calm", *SAVES))
    done = launch(4, *dies(3, 4, "backward"), BIN / "train_gpt", *base(folder, "fewer", *SAVES, "--dp", "4"),
                  flags=("--restarts", "1", "--elastic", *PATIENT))
    assert done.returncode == 0, done.stderr
    assert "restart 1 of 1 with 3 ranks, as rank 3 was killed by signal 9\n" in done.stderr, done.stderr
    assert "--batch: must be a multiple of dp 3, got 4" in done.stderr, done.stderr
    assert "restart 1 of 1 with 2 ranks, as rank" in done.stderr, done.stderr
    agree(folder, "calm", "fewer")


SRUN = """#!/bin/bash
# Starts the command once on each of two machines, all of them this one.
for node in 0 1; do SLURM_NNODES=2 SLURM_NODEID=$node SLURM_PROCID=$node SLURM_STEP_NUM_TASKS=2 "$@" & done
wait -n && wait -n
"""


def page(folder):
    """The commands of docs/cluster.md: those of one machine, and the script for Slurm with stand-ins."""
    root, here = LAUNCH.parents[1], pathlib.Path(folder)
    (here / "build" / "release").mkdir(parents=True)
    (here / "build" / "release" / "bin").symlink_to(BIN)
    (here / "scripts").symlink_to(root / "scripts")
    text(folder)
    (here / "words.txt").rename(here / "book.txt")
    stand_ins = here / "stand_ins"
    stand_ins.mkdir()
    for name, script in (("srun", SRUN), ("scontrol", "#!/bin/bash\necho localhost\n")):
        (stand_ins / name).write_text(script)
        (stand_ins / name).chmod(0o755)
    blocks = re.findall(r"^```bash\n(.*?)^```$", (root / "docs" / "cluster.md").read_text(), re.M | re.S)
    assert len(blocks) == 3, blocks
    slurm = blocks[2]
    for old, new in (("-n 8", "-n 1"), ("/shared/book.bin", f"{here}/book.txt"), ("/shared", folder), (":29500", f":{free_port()}"),
                     ("--device cuda", "--steps 20"), ("logs", f"{here}/slurm")):
        assert old in slurm, old
        slurm = slurm.replace(old, new)
    for i, block in enumerate((*blocks[:2], slurm)):
        for option, value in zip(SMALL[::2], SMALL[1::2]):
            block = block.replace("--steps 20", f"--steps 20 {option} {value}")
        done = subprocess.run(["bash", "-c", block.replace("--steps 20", "--steps 4 --threads 1")], cwd=folder, capture_output=True, text=True,
                              env={**os.environ, "PATH": f"{stand_ins}:{BIN}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "x"})
        assert done.returncode == 0, (block, done)
        assert len(metrics(here / ("run", "run2", "run")[i])) == 4
        shutil.rmtree(here / "run", ignore_errors=True)  # the next block may use its name
    assert (here / "logs" / "rank_1.log").exists() and (here / "slurm" / "rank_1.log").exists()


if __name__ == "__main__":
    main([wrong_use, environment_and_status, logs, outlives_its_reader, signals, starts_again, starts_again_on_each_machine, does_not_start_again,
          a_mistake_on_one_rank_does_not_start_again,
          with_fewer_ranks, page])
