#!/usr/bin/env python3
"""Plants faults in the source, one at a time, and reports which tests detect them.

usage: mutate.py                 plants every fault of scripts/faults.py; needs about half an hour
       mutate.py --only PATTERN  only faults whose name matches
       mutate.py --table         also writes the results into the table of docs/reliability.md
       mutate.py --check         only checks that every fault still applies to its file and has a row in the table

Works in a copy of HEAD under build/mutate, with a release build that emulates the GPU. Status 1 if a
fault is not caught or no longer applies.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import time

from faults import FAULTS

ROOT = pathlib.Path(__file__).resolve().parent.parent
TREE = ROOT / "build/mutate/tree"
BUILD = ROOT / "build/mutate/build"
PAGE = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- faults: begin -->\n", "<!-- faults: end -->\n"


def run(*command, **options):
    return subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **options)


def must(*command):
    done = run(*command)
    if done.returncode:
        sys.exit(f"mutate: {' '.join(map(str, command))} failed:\n{done.stdout[-3000:]}")
    return done.stdout


def misfits(root, faults):
    for name, file, text, _, _ in faults:
        path = root / file
        count = path.read_text().count(text) if path.exists() else 0
        if count != 1:
            yield f"{name}: its text must occur once in {file}, occurs {count} times"


def prepare():
    if not TREE.exists():
        run("git", "-C", ROOT, "worktree", "prune")
        must("git", "-C", ROOT, "worktree", "add", "--detach", TREE)
    must("git", "-C", TREE, "checkout", "--detach", "--force", must("git", "-C", ROOT, "rev-parse", "HEAD").strip())
    must("cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DWEFT_TESTS=ON",
         "-DWEFT_EXAMPLES=ON", "-DWEFT_BENCH=OFF", "-DWEFT_CUDA=EMULATE", "-DCMAKE_LINK_DEPENDS_NO_SHARED=ON")
    build()


def build():
    return must("cmake", "--build", BUILD)


def failing_tests(pattern):
    """Names of the matching tests that fail."""
    out = run("ctest", "--test-dir", BUILD, "-j", os.cpu_count(), "--no-tests=error", "--timeout", "120",
              "-R", f"^({pattern})").stdout
    return re.findall(r"^\s*\d+/\d+ Test +#\d+: (\S+) \.*\**(?:Failed|Timeout|SEGFAULT|Exception|Subprocess)", out, re.M)


def plant(fault):
    """(names of the tests that detected the fault, seconds)."""
    _, file, text, replacement, tests = fault
    path, begin = TREE / file, time.monotonic()
    sound = path.read_text()
    if sound.count(text) != 1:
        sys.exit(f"mutate: {fault[0]} does not fit {file} of HEAD; commit first")
    path.write_text(sound.replace(text, replacement))
    try:
        build()
        seen = failing_tests(tests)
    finally:
        path.write_text(sound)
    return seen, time.monotonic() - begin


def table():
    """{fault: its row} of the page."""
    lines = PAGE.read_text().split(BEGIN)[1].split(END)[0].splitlines()[2:]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines}


def write_table(results):
    rows = table() | {name: f"| {name} | {file} | {', '.join(seen) or '**nothing**'} |" for name, file, seen in results}
    lines = ["| Fault | File | Caught by |", "| --- | --- | --- |", *(rows[f[0]] for f in FAULTS if f[0] in rows)]
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + rest.split(END)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    faults = [f for f in FAULTS if re.search(options.only, f[0])]
    if BEGIN not in PAGE.read_text():
        sys.exit(f"mutate: {PAGE} must have the line {BEGIN.strip()}")
    wrong = list(misfits(ROOT, faults))
    if options.check:
        wrong += [f"{f[0]}: has no row in {PAGE.name}; run mutate.py --table --only {f[0]}"
                  for f in faults if f[0] not in table()]
    if options.check or wrong:
        print("\n".join(wrong + [f"faults: {len(faults)}, {len(wrong)} problems"]))
        return bool(wrong)
    if not faults:
        sys.exit(f"mutate: no fault matches {options.only}")
    prepare()
    every = "|".join(sorted({f[4] for f in faults}))
    if broken := failing_tests(every):
        sys.exit(f"mutate: without a fault these fail: {' '.join(broken)}")
    rows = []
    for fault in faults:
        seen, seconds = plant(fault)
        rows.append((fault[0], fault[1], seen))
        print(f"{'caught' if seen else 'MISSED':6}  {fault[0]:32}  {seconds:5.0f} s  {' '.join(seen)}", flush=True)
    build()
    if options.table:
        write_table(rows)
    caught = sum(bool(seen) for _, _, seen in rows)
    print(f"{caught} of {len(rows)} faults caught")
    return caught < len(rows)


if __name__ == "__main__":
    sys.exit(main())
