#!/usr/bin/env python3
"""Fails when a page shows code that no test runs, when a relative link of a page leads to no file or no heading, or
when a table names a test case ("test_mtp: M1: roll_left; tests/cli/test_mtp.py: resumes") that is not
there, when docs/glossary.md is out of order or names something that its file does not have, or when
docs/README.md does not list a page.

Code that tests run: the first C++ block of README.md is examples/readme_model.cpp. For docs/X.md with
a tests/docs/test_X.cpp, or the files that CODE_OF names, each ```cpp block is a run of lines of that file (its indentation may differ),
and each `code` in the last column of a table whose head has "Weft" there is in that file. Programs of
the pages that scripts/run_pages.py lists are left to it."""
import pathlib
import re
import sys

import run_pages

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Pages whose code is not in tests/docs.
CODE_OF = {"data.md": ["tests/data/test_mixture.cpp"],
           "finetuning.md": ["tests/nn/test_lora.cpp"],
           "from_pytorch.md": ["tests/docs/test_from_pytorch.cpp", "tests/docs/test_from_pytorch_training.cpp"],
           "own_training.md": ["examples/train_mlp.cpp", "tests/train/test_trainer_hook.cpp", "tests/train/test_trainer_inputs.cpp",
                               "tests/train/test_trainer_use.cpp"],
           "tape.md": ["autograd/tape.cpp", "autograd/elementwise_activation.cpp"]}


def missing_tests(page):
    """The test cases in tables of a page that do not exist; a case may be named by its beginning."""
    for line in page.read_text().splitlines():
        if not line.startswith("|"):
            continue
        for file, names in re.findall(r"((?:tests/cli/)?test_\w+(?:\.py)?): ([^;|]+)", line):
            python = file.endswith(".py")
            paths = [ROOT / file] if python else [*ROOT.glob(f"tests/*/{file}.cpp")]
            source = "".join(path.read_text() for path in paths if path.exists())
            if python:
                found = all(f"def {name}(" in source for name in names.strip().split(", "))
            else:
                cases = re.findall(r'TEST_CASE\(\s*((?:"[^"]*"\s*)+)\)', source)
                joined = [re.sub(r'"\s*"', "", case) for case in cases]
                found = any(names.strip() in case for case in joined)
            if not found:
                yield f"{page.relative_to(ROOT)}: test case {file}: {names.strip()}, which is not there"


def squeezed(text):
    return re.sub(r"\s+", "", text)


def untested_code(page):
    """The code of a page that is not in its test file; nothing for a page without one."""
    files = CODE_OF.get(page.name, [f"tests/docs/test_{page.stem}.cpp"])
    runs = page.name in run_pages.PAGES
    if page.parent != ROOT / "docs" or not (ROOT / files[0]).exists():
        if page.parent == ROOT / "docs" and not runs and run_pages.MAIN.search(page.read_text()):
            yield f"docs/{page.name}: neither scripts/run_pages.py nor {files[0]} has its program"
        return
    text, source = page.read_text(), "".join((ROOT / file).read_text() for file in files)
    path = " or ".join(files)
    name = page.relative_to(ROOT)
    lines = [line.strip() for line in source.splitlines()]
    for block in re.findall(r"```cpp\n(.*?)```", text, re.S):
        if runs and run_pages.MAIN.search(block):
            continue
        wanted = [line.strip() for line in block.rstrip().splitlines()]
        if not any(lines[i:i + len(wanted)] == wanted for i in range(len(lines))):
            yield f"{name}: the block that begins '{wanted[0]}' is not in {path}"
    code = squeezed(re.sub(r"//[^\n]*", "", source))
    in_table = False
    for line in text.splitlines():
        last = line.rstrip("| ").rsplit(" | ")[-1] if line.startswith("|") else ""
        if not last:
            in_table = False
        elif last.startswith("Weft"):
            in_table = True
        elif in_table:
            for span in re.findall(r"`([^`]+)`", last):
                if squeezed(span) not in code and not (ROOT / span.removeprefix("weft/")).is_file():
                    yield f"{name}: `{span}` is not in {path}"


def wrong_terms():
    """What is wrong in docs/glossary.md, whose rows are | term | meaning | [file](link) `name` |."""
    page = ROOT / "docs/glossary.md"
    rows = [line.strip("| ").split(" | ") for line in page.read_text().splitlines()
            if line.startswith("| ")][2:]
    terms = [row[0] for row in rows]
    for before, after in zip(terms, terms[1:]):
        if before.casefold() >= after.casefold():
            yield f"docs/glossary.md: '{after}' must come before '{before}'"
    for term, *_, where in rows:
        file = page.parent / re.search(r"\]\(([^)]+)\)", where)[1]
        text = file.read_text() if file.exists() else ""  # main() reports the link
        for name in re.findall(r"`(\w+)`", where):
            if text and not re.search(rf"\b{name}\b", text):
                yield f"docs/glossary.md: {term}: {file.name} has no {name}"


def anchors(page):
    """What a link may name after #: the page's headings, as GitHub spells them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-"))
    return found


def broken_links(page):
    name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page.name
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", prose):
        file = page.parent / target if target else page
        if "://" in target:
            continue
        if not file.exists():
            yield f"{name}: link to {target}, which is not there"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"{name}: link to #{anchor}, which {file.name} has not"


def main():
    wrong = list(wrong_terms())
    block = re.search(r"```cpp\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    if not block or block[1] != (ROOT / "examples/readme_model.cpp").read_text():
        wrong.append("README.md: its first C++ block must equal examples/readme_model.cpp")
    index = (ROOT / "docs/README.md").read_text()
    wrong += [f"docs/README.md: no link to {page.name}" for page in sorted(ROOT.glob("docs/*.md"))
              if f"]({page.name})" not in index and page.name != "README.md"]
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".ci/*.md")]
    for page in sorted(pages):
        wrong += broken_links(page)
        wrong += missing_tests(page)
        wrong += untested_code(page)
    print("\n".join(wrong + [f"pages: {len(pages)}, {len(wrong)} problems"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
