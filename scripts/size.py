#!/usr/bin/env python3
"""Prints the lines of each folder and those of the last release: all lines, and lines of code.

The last release is the newest tag v*.*.* that HEAD contains; before the first tag, LAST_RELEASE.
"Code" leaves out blank lines and comments. The product total excludes tests, benchmarks,
documentation, scripts, build files and the GPU emulator (cuda/emu). docs/decisions.md states what
growth has to pay for.

usage: scripts/size.py [COMMIT]     COMMIT: compare with this one instead"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAST_RELEASE = "f2447f8"

# A file belongs to the longest of these paths that contains it, or to "headers" at the root.
PRODUCT = ["headers", "core", "core/cpu", "core/kernels", "cuda", "autograd", "nn", "optim", "data",
           "io", "tokenizer", "distributed", "train", "examples"]
OTHER = ["cuda/emu", "tests", "bench", "docs", "scripts", "cmake"]
SHELL = {".py", ".sh", ".cmake", "run"}
CPP = {".h", ".cpp", ".inc", ".cu", ".cuh"}
COMMENT = {
    # Strings first, so that "//" inside a string starts no comment.
    "cpp": re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.S),
    "shell": re.compile(r'^[ \t]*"""(?!\s*\\).*?"""|^[ \t]*#[^\n]*', re.S | re.M),
}


def language(path):
    name = pathlib.PurePosixPath(path)
    suffix = name.suffix or name.name
    if suffix in CPP:
        return "cpp"
    if suffix in SHELL or name.name == "CMakeLists.txt":
        return "shell"
    return "text" if suffix == ".md" else None


def folder(path):
    """The row to which a file belongs."""
    if path in ("CMakeLists.txt",) or path.endswith(".cmake"):
        return "cmake"
    if path.startswith(".ci/") and not path.endswith(".md"):
        return "scripts"
    if path.endswith(".md"):
        return "docs"
    owners = [f for f in PRODUCT + OTHER if path.startswith(f + "/")]
    return max(owners, key=len) if owners else "headers"


def code_lines(text, kind):
    if kind in COMMENT:
        text = COMMENT[kind].sub(lambda m: m[0] if m[0][0] == '"' and kind == "cpp" else "", text)
    return sum(1 for line in text.splitlines() if line.strip())


def git(*arguments, **options):
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True,
                          **options).stdout


def files_now():
    """(path, bytes) of the files in the working tree, including new ones."""
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", text=True)
    for name in sorted(set(names.split("\0")) - {""}):
        if (ROOT / name).is_file():
            yield name, (ROOT / name).read_bytes()


def files_at(commit):
    """(path, bytes) of the files of a commit, read by one git process."""
    entries = git("ls-tree", "-r", "-z", commit, text=True).split("\0")
    blobs = [(entry.split("\t")[1], entry.split()[2]) for entry in entries if " blob " in entry]
    wanted = "".join(f"{blob}\n" for _, blob in blobs).encode()
    data, at = git("cat-file", "--batch", input=wanted), 0
    for path, _ in blobs:
        end = data.index(b"\n", at)
        size = int(data[at:end].split()[2])
        yield path, data[end + 1:end + 1 + size]
        at = end + 1 + size + 1


def count(files):
    """{folder: [lines, lines of code]}"""
    lines = {f: [0, 0] for f in PRODUCT + OTHER}
    for path, content in files:
        kind = language(path)
        if kind is None:
            continue
        text = content.decode(errors="replace")
        row = lines[folder(path)]
        row[0] += len(text.splitlines())
        row[1] += code_lines(text, kind)
    return lines


def last_release():
    tag = subprocess.run(["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"], cwd=ROOT,
                         capture_output=True, text=True)
    return tag.stdout.strip() if tag.returncode == 0 else LAST_RELEASE


def main():
    then = sys.argv[1] if len(sys.argv) > 1 else last_release()
    now = count(files_now())
    try:
        before = count(files_at(then))
    except subprocess.CalledProcessError:  # a shallow clone
        print(f"size: {then} is not in this clone, so there is nothing to compare with")
        before = None

    def row(name, new, old):
        text = f"{name:14} {new[0]:8,} {new[1]:8,}"
        if old:
            text += f" {old[0]:10,} {old[1]:8,} {new[0] - old[0]:+10,} {new[1] - old[1]:+8,}"
        print(text)

    def total(lines, names):
        return [sum(lines[n][i] for n in names) for i in (0, 1)]

    print(f"{'folder':14} {'lines':>8} {'code':>8}" +
          (f" {then:>10} {'code':>8} {'change':>10} {'code':>8}" if before else ""))
    for names, title in ((PRODUCT, "product"), (OTHER, None)):
        for name in names:
            if now[name][0] or (before and before[name][0]):
                row(name, now[name], before and before[name])
        if title:
            row(title, total(now, names), before and total(before, names))
            print()


if __name__ == "__main__":
    main()
