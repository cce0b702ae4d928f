#!/usr/bin/env python3
"""Fails when the first C++ block of README.md is not examples/readme_model.cpp, which the build
compiles and runs, or when a relative link of a page leads nowhere."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


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
    print("\n".join(wrong + [f"pages: {len(pages)}, {len(wrong)} problems"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
