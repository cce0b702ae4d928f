"""Programs that take turns on one machine: each is warmed up, then stopped while the others run."""
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile


class Program:
    """A program that stops itself (SIGSTOP) after its warm-up and after every `steps` timed steps, as
    `bench_step --pause` and `gpt.py --pause` do, and at the end prints one line of JSON."""

    def __init__(self, command, env, steps):
        self.command, self.steps, self.ended = list(map(str, command)), steps, False
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command, env={**os.environ, **env}, stdout=self.out, stderr=self.err)
        self.wait()

    def wait(self):
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return
        self.ended = True
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode != 0:
            self.err.seek(0)
            raise RuntimeError(f"{' '.join(self.command)}: {self.err.read().strip()[-300:]}")

    def turn(self):
        os.kill(self.process.pid, signal.SIGCONT)
        self.wait()

    def result(self):
        """What the program printed, with one time per turn: the median without the first step, which finds
        the caches full of another program's data."""
        self.out.seek(0)
        run = json.loads(self.out.read().splitlines()[-1])
        ms = run["step_ms"]
        groups = [ms[i : i + self.steps] for i in range(0, len(ms), self.steps)]
        return {**run, "step_ms": [statistics.median(g[1:] or g) for g in groups]}

    def kill(self):
        if not self.ended:
            self.process.kill()
            self.process.wait()


def take_turns(started, turns, after, each_turn):
    """Runs all programs `turns` times in rotation; `started` yields (name, Program). Calls after(name) when a program
    has had its turn, and each_turn() once a turn, while all are stopped. Returns {name: result}."""
    programs = {}
    try:
        for name, program in started:
            programs[name] = program
        for _ in range(turns):
            for name, program in programs.items():
                program.turn()
                after(name)
            each_turn()
        unfinished = [name for name, program in programs.items() if not program.ended]
        assert not unfinished, f"{unfinished} take more turns than {turns}"
        return {name: program.result() for name, program in programs.items()}
    finally:
        for program in programs.values():
            program.kill()
