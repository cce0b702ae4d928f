"""Shared by the tests of lost ranks: how long a job takes until its last process has ended, and a limit that a
slow machine does not break."""
import atexit
import bisect
import os
import pathlib
import signal
import subprocess
import threading
import time
import uuid

LIMIT_S = 10  # to end, after the others could notice the fault


class Clock:
    """Counts the seconds that this machine offers: fewer where a thread that sleeps wakes late, or where work takes
    longer than its processor time. All limits of a job's end are in these seconds."""
    SLEEP_S, WORK_S = 0.4, 0.01

    def __init__(self):
        self.wall, self.offered = [time.time()], [0.0]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            time.sleep(self.SLEEP_S)
            slept, begun = time.time(), time.thread_time()
            while time.thread_time() - begun < self.WORK_S:
                pass
            now = time.time()
            slowness = max(1, (slept - self.wall[-1]) / self.SLEEP_S, (now - slept) / self.WORK_S)
            self.offered.append(self.offered[-1] + (now - self.wall[-1]) / slowness)
            self.wall.append(now)

    def at(self, wall):
        """The latest count that is not after this time."""
        return self.offered[max(0, bisect.bisect(self.wall, wall) - 1)]


CLOCK = Clock()
ENDED = []  # (seconds beyond the timeout, case)


def report():
    if ENDED:
        beyond, case = max(ENDED)
        print(f"{len(ENDED)} jobs ended at most {beyond:.1f} s after the fault or the timeout that detects it ({case})")


atexit.register(report)


def processes_of(mark):
    """The living processes that were started with this environment variable."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it has ended, or is another user's
            pass
    return found


class Job:
    """A command with all processes that it starts, until the last of them has ended."""

    def __init__(self, command, env=None, **how):
        job = uuid.uuid4().hex
        self.mark = f"WEFT_TEST_JOB={job}".encode()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        errors="replace", env={**(env or os.environ), "WEFT_TEST_JOB": job}, **how)

    def end(self, limit=300):
        """Waits; returns what the command printed and its status."""
        deadline = time.time() + limit
        try:
            out, errors = self.process.communicate(timeout=limit)
            while left := processes_of(self.mark):
                assert time.time() < deadline, f"processes {left} did not end: {errors}"
                time.sleep(0.02)
        except BaseException:
            for pid in processes_of(self.mark):
                os.kill(pid, signal.SIGKILL)
            raise
        self.ended = time.time()
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, errors)

    def check_time(self, case, sign, timeout_s=0):
        """`sign`: a file that was last written when the fault occurred. `timeout_s`: how long the other ranks may
        take to notice; 0 for what they notice at once."""
        fault = pathlib.Path(sign).stat().st_mtime
        ENDED.append((self.ended - fault - timeout_s, case))
        took = CLOCK.at(self.ended) - CLOCK.at(fault)
        assert took <= timeout_s + LIMIT_S, (
            f"{case}: the last process ended {self.ended - fault:.1f} s after the fault ({took:.1f} s of an idle machine)")
