#!/usr/bin/env python3
"""Checks that each block of refused.cpp fails to compile, with its message; and the rest compiles.

usage: refused.py COMPILER INCLUDE_FOLDER
"""
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).with_name("refused.cpp")


def compile_with(compiler, folder, *flags):
    return subprocess.run([compiler, "-std=c++20", "-I", folder, *flags], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as work:
        return check(work)


def check(work):
    wrong = []
    # The headers are compiled once: they take most of the time.
    headers = pathlib.Path(work, "headers.h")
    headers.write_text("".join(re.findall(r"^#include .+\n", SOURCE.read_text(), re.M)))
    once = compile_with(*sys.argv[1:], "-x", "c++-header", str(headers))
    if once.returncode:
        wrong.append(f"the headers must compile:\n{once.stdout}")

    def compile_case(*flags):
        return compile_with(*sys.argv[1:], "-fsyntax-only", "-include", str(headers), *flags, str(SOURCE))

    plain = compile_case()
    if plain.returncode:
        wrong.append(f"without a case it must compile:\n{plain.stdout}")
    cases = re.findall(r"^#ifdef (\w+)  // refused: (.+)$", SOURCE.read_text(), re.M)
    for name, text in cases:
        done = compile_case(f"-D{name}")
        if done.returncode == 0:
            wrong.append(f"{name}: compiles")
        elif text not in done.stdout:
            wrong.append(f"{name}: fails without '{text}':\n{done.stdout}")
    print("\n".join(wrong + [f"refused: {len(cases)} cases, {len(wrong)} wrong"]))
    return 1 if wrong or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
