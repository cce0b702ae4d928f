"""A trainer that loses a rank in any phase of a step, over threads, TCP and an emulated NCCL: all end in time with one
line that names the rank, and the last checkpoint loads."""
import pathlib
import re

from support import BIN, SMALL, main, metrics, run, text
from support_faults import Job
from support_tcp import PATIENT, command, environment

MODEL = [*SMALL, "--threads", "1", "--steps", "3", "--save-every", "1"]
# The second gather of a step is in forward, the sixth, of the first block, in backward.
PHASES = (("forward", "--zero"), ("backward", "--zero"), ("update", "--zero"), ("save:3", "--zero"), ("gather:1", "--fsdp"),
          ("gather:5", "--fsdp"))


def lost(folder, how, *says, ranks=("--backend", "tcp"), program="train_gpt"):
    """Rank 1 is lost in each phase of step 3. `says`: what the one line has."""
    for phase, layout in PHASES:
        out = f"{folder}/{phase}"
        args = [BIN / program, "--data", text(folder), "--out", out, *MODEL, layout, *ranks]
        job = Job([*map(str, args)] if how == "threads" else command(2, *args, flags=PATIENT),
                  environment({"WEFT_TEST_KILL": f"1:3:{phase}"}))
        done = job.end()
        job.check_time(f"{how}, {phase}", pathlib.Path(out, "metrics.jsonl"))
        lines = [line for line in done.stderr.splitlines() if line != "weft_launch: rank 1 was killed by signal 9"]
        assert done.returncode == (1 if how == "threads" else 137) and len(lines) == 1, (phase, done)
        assert all(re.search(part.format(phase=phase), lines[0]) for part in says), (phase, lines)
        assert [row["step"] for row in metrics(out)] in ([1, 2], [1, 2, 3]), phase
        done = run("generate", "--checkpoint", out, "--prompt", "the", "--tokens", "1")
        assert done.returncode == 0, (phase, done)


def of_threads(folder):
    """A thread throws; a collective in which the other rank was is in its record."""
    lost(folder, "threads", "^rank 1: WEFT_TEST_KILL=1:3:{phase}$", ranks=("--ranks", "2"))


def of_tcp(folder):
    lost(folder, "tcp", "rank 1 was lost: ", " of group ")


def of_nccl(folder):
    lost(folder, "nccl", "rank 1 was lost: ", " of group ", ranks=("--device", "cuda"), program="train_gpt_emulated")


if __name__ == "__main__":
    main([of_threads, of_tcp, of_nccl], at_once=3)
