#!/usr/bin/env python3
"""Fails when the first C++ block of README.md is not examples/readme_model.cpp, which the build
compiles and runs, when a relative link of a page leads nowhere, or when a table names a test case
("test_mtp: M1: roll_left; tests/cli/test_mtp.py: resumes") that is not there."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


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


def main():
    wrong = []
    block = re.search(r"```cpp\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    if not block or block[1] != (ROOT / "examples/readme_model.cpp").read_text():
        wrong.append("README.md: its first C++ block must equal examples/readme_model.cpp")
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".ci/*.md")]
    for page in sorted(pages):
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
            if "://" not in target and not (page.parent / target).exists():
                wrong.append(f"{page.relative_to(ROOT)}: link to {target}, which is not there")
        wrong += missing_tests(page)
    print("\n".join(wrong + [f"pages: {len(pages)}, {len(wrong)} problems"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
