#!/usr/bin/env python3
"""Compiles and runs the programs of pages, and compares what they print with the page.
usage: scripts/run_pages.py PREFIX            against the Weft installed in PREFIX
       scripts/run_pages.py --write PREFIX    replaces the output in the pages

A program is a ```cpp block with a main(), or a ```python block; its output is the next ``` block without
a language. The programs of a page run in order in one empty folder. A C++ program has at most 25 lines,
not counting headers, blank lines and lone closing braces. Matrix products round by processor
(docs/determinism.md), so a number with a decimal point may differ by two in its last digit. Without NumPy no
Python runs: the files that it would write are in tests/fixtures/author."""
import concurrent.futures
import decimal
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ["author.md", "tape.md", "attention.md"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
MAIN = re.compile(r"^int main\(", re.M)
NUMBER = re.compile(r"\d+\.\d+")
LONGEST = 25


def programs_of(text):
    """(program, the block after it or None) for each program of a page."""
    blocks = [*BLOCK.finditer(text), None]
    return [(block, after) for block, after in zip(blocks, blocks[1:])
            if block[1] == "python" or block[1] == "cpp" and MAIN.search(block[2])]


def has_numpy():
    return subprocess.run(["python3", "-c", "import numpy"], capture_output=True).returncode == 0


def lines_of(code):
    """The lines of a program without headers, blank ones and those that only close a brace."""
    body = re.sub(r"^(#include|using namespace) .*\n", "", code, flags=re.M)
    return sum(1 for line in body.splitlines() if line.strip(" });"))


def compile_program(code, path, prefix):
    """Returns the compiler's messages; "" means success. -O0: the time goes into the library."""
    path.with_suffix(".cpp").write_text(code)
    return subprocess.run(
        [os.environ.get("CXX", "g++"), "-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror",
         f"-I{prefix}/include", path.with_suffix(".cpp"), "-o", path, f"-L{prefix}/lib", "-lweft",
         f"-Wl,-rpath,{prefix}/lib"], capture_output=True, text=True).stderr


def same(printed, shown):
    if NUMBER.sub("0.0", printed) != NUMBER.sub("0.0", shown):
        return False

    def agree(x, y):
        last = min(x.as_tuple().exponent, y.as_tuple().exponent)
        return abs(x - y).scaleb(-last) <= 2
    return all(agree(decimal.Decimal(x), decimal.Decimal(y)) for x, y in
               zip(NUMBER.findall(printed), NUMBER.findall(shown)))


def problems_of(page, prefix, write):
    text = new = page.read_text()
    programs = programs_of(text)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        paths = [pathlib.Path(folder, f"program_{i}") for i in range(len(programs))]
        compiled = list(pool.map(lambda block, path: compile_program(block[2], path, prefix) if block[1] == "cpp" else "",
                                 [block for block, _ in programs], paths))
        work = pathlib.Path(folder, "work")
        work.mkdir()
        for (block, output), path, errors in zip(programs, paths, compiled):
            where = f"{page.name}:{text[:block.start()].count(chr(10)) + 1}"
            if output is None or output[1]:
                yield f"{where}: a program needs its output as the next block"
                continue
            if errors:
                yield f"{where}: does not compile\n{errors}"
                continue
            if block[1] == "cpp" and lines_of(block[2]) > LONGEST:
                yield f"{where}: at most {LONGEST} lines, got {lines_of(block[2])}"
            if block[1] == "python" and not has_numpy():
                print(f"{where}: not run, as there is no NumPy")
                shutil.copytree(ROOT / "tests/fixtures/author", work, dirs_exist_ok=True)
                continue
            command = [path] if block[1] == "cpp" else ["python3", "-c", block[2]]
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=120)
            if done.returncode or done.stderr:
                yield f"{where}: exit status {done.returncode}\n{done.stderr}"
            elif write and done.stdout != output[2]:
                until = text[block.start():output.start()]
                new = new.replace(until + output[0], f"{until}```\n{done.stdout}```")
            elif not same(done.stdout, output[2]):
                yield f"{where}: prints\n{done.stdout}and not\n{output[2]}"
    if write:
        page.write_text(new)
    if not programs:
        yield f"{page.name}: no program"


def main():
    write = sys.argv[1:2] == ["--write"]
    prefix = pathlib.Path(sys.argv[-1]).resolve()
    wrong = [problem for page in PAGES for problem in problems_of(ROOT / "docs" / page, prefix, write)]
    print("\n".join(wrong + [f"pages with programs: {len(PAGES)}, {len(wrong)} problems"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
