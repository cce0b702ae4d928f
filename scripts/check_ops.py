#!/usr/bin/env python3
"""Lists the public ops and writes docs/ops.md.

usage: check_ops.py           writes docs/ops.md
       check_ops.py --check   fails when docs/ops.md is stale

Both fail when an op has no docstring, or when tests/*/test_<stem>.cpp (or test_<stem>_*.cpp) holds no
gradcheck of it (no test, where no gradient exists). A public op is a free function declared in
autograd/<stem>.h that returns a tensor, a TensorList or a struct of tensors.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Headers of the tape itself: what they declare runs or makes ops, it is none.
NOT_OPS = {"tape", "gradcheck", "recompute", "function"}
# No gradient exists: the result is integer or boolean, does not depend on values, or has none
# (the only other device of a build without CUDA is meta).
NOT_DIFFERENTIABLE = {"argmax", "argmin", "count_experts", "count_top_experts", "count_valid", "eq", "ne",
                      "lt", "le", "gt", "ge", "one_hot", "rope_tables", "sort_by_expert", "to_device",
                      "random_logits", "sinkhorn"}


def without_comments_and_text(source):
    """Blanks comments and string contents; line breaks stay."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    return re.sub(pattern, lambda m: '""' if m[0][0] == '"' else "\n" * m[0].count("\n"), source,
                  flags=re.S)


def top_level(header):
    """The text of a header with the bodies of structs and functions taken out."""
    out, depth, opened = [], 0, []
    for char in header:
        if char == "{":
            line = "".join(out).rsplit("\n", 1)[-1]
            opened.append(line.lstrip().startswith("namespace"))
            depth += not opened[-1]
            if depth:
                out.append(";" if depth == 1 and not opened[-1] else "")
                continue
        elif char == "}" and opened:
            depth -= not opened.pop()
            continue
        if depth == 0 or char == "\n":
            out.append(char)
    return "".join(out)


def structs_of_tensors(header):
    found = re.finditer(r"struct (\w+) \{(.*?)\n?\};", header, re.S)
    return {m[1] for m in found if re.search(r"^\s*Tensor\b", m[2], re.M)}


def ops_of(path):
    """{name: has a docstring} of the ops declared in a header, overloads as one; their result types."""
    source = path.read_text()
    code = without_comments_and_text(source)
    results = {"Tensor", "TensorList"} | structs_of_tensors(code)
    ops = {}
    lines = source.split("\n")
    for m in re.finditer(r"^(\w+) (\w+)\(", top_level(code), re.M):
        if m[1] not in results:
            continue
        name = m[2]
        documented = False
        for i, line in enumerate(lines):
            if re.match(rf"{m[1]} {name}\(", line):
                # A docstring holds for the declarations below it up to the next empty line.
                while i > 0 and lines[i - 1].strip() and not lines[i - 1].startswith("///"):
                    i -= 1
                documented |= i > 0 and lines[i - 1].startswith("///")
        ops[name] = ops.get(name, False) or documented
    return ops, sorted(results)


def chunks(source):
    """The functions, tables and test cases of a test file, as text."""
    out, depth, start, i = [], 0, 0, 0
    while i < len(source):
        if source[i] == "{":
            head = source[start:i]
            if re.search(r"namespace[\w\s:]*$", head):
                start = i + 1
            else:
                depth += 1
        elif source[i] == "}" and depth:
            depth -= 1
            if depth == 0:
                out.append(source[start:i + 1])
                start = i + 1
        i += 1
    return out


def name_of(chunk):
    """What a chunk defines: a function, a table, a struct."""
    head = chunk.split("{", 1)[0]
    names = re.findall(r"(\w+)\s*(?:\(|\[|=|$)", head.strip())
    return names[0] if names and "TEST_CASE" not in head else None


def words_of(text):
    """The identifiers of some code, with those that an operator stands for."""
    symbols = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
    words = set(re.findall(r"(?<!std::)\b\w+\b", text))
    return words | {op for sign, op in symbols.items() if f" {sign} " in text}


def tested(path):
    """The identifiers in a test file: all of them, and those of code that takes part in a gradcheck."""
    code = without_comments_and_text(path.read_text())
    parts = chunks(code)
    # Code reaches gradcheck when it calls it, or calls a function of this file that does.
    reaching, grew = {"gradcheck"}, True
    while grew:
        before = len(reaching)
        for chunk in parts:
            if name_of(chunk) and any(re.search(rf"\b{n}\b", chunk) for n in reaching):
                reaching.add(name_of(chunk))
        grew = len(reaching) > before
    used = [c for c in parts if any(re.search(rf"\b{n}\b", c) for n in reaching)]
    # Tables and functions that such code hands to gradcheck.
    for chunk in parts:
        name = name_of(chunk)
        if chunk not in used and name and any(re.search(rf"\b{name}\b", c) for c in used):
            used.append(chunk)
    return {"test": words_of(code), "gradcheck": words_of("\n".join(used))}


def link(path, text="yes"):
    return f"[{text}](../{path})" if (ROOT / path).exists() else "—"


def definition(name, results):
    """The file that defines an op, and its text with that of the helpers beside it."""
    for path in sorted(ROOT.glob("autograd/*.cpp")):
        text = path.read_text()
        if re.search(rf"^({'|'.join(results)}) {name}\(", text, re.M):
            for helper in re.findall(r'#include "weft/(autograd/\w+_common\.h)"', text):
                text += (ROOT / helper).read_text()
            return f"autograd/{path.name}", text
    return None, ""


def row(name, stem, results, tests):
    place, text = definition(name, results)
    kernels = re.findall(r'#include "weft/core/kernels/(\w+)\.h"', text)
    kernel = stem if stem in kernels else next(iter(kernels), None)
    backward = "none" if name in NOT_DIFFERENTIABLE else "by its parts"
    if backward != "none" and re.search(r"\brecord\(", text):
        backward = link(place)
    cpu = link(f"core/cpu/{kernel}.cpp") if kernel else "no kernel"
    cuda = "no kernel"
    if kernel:  # a .cpp gives the work to a library
        cuda = link(f"cuda/{kernel}.cpp" if (ROOT / f"cuda/{kernel}.cpp").exists() else f"cuda/{kernel}.cu")
    test = next(iter(tests), None)
    return (f"| {link(f'autograd/{stem}.h', f'`{name}`')} | {link(place) if place else '—'} | {backward} "
            f"| {cpu} | {cuda} | {link(test, pathlib.Path(test).stem) if test else '—'} |")


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    words = {str(p.relative_to(ROOT)): tested(p) for p in sorted(ROOT.glob("tests/*/test_*.cpp"))
             if p.parent.name != "cuda"}
    rows, wrong = [], []
    for header in sorted(ROOT.glob("autograd/*.h")):
        if header.stem in NOT_OPS:
            continue
        ops, results = ops_of(header)
        for name, documented in ops.items():
            family = [t for t in words if re.match(rf"tests/\w+/test_{header.stem}(_\w+)?\.cpp", t)]
            kind = "test" if name in NOT_DIFFERENTIABLE else "gradcheck"
            tests = [t for t in family if name in words[t][kind]]
            if not tests:
                wrong.append(f"autograd/{header.stem}.h: {name} has no {kind} in "
                             f"tests/autograd/test_{header.stem}.cpp")
            if not documented:
                wrong.append(f"autograd/{header.stem}.h: {name} has no docstring")
            rows.append(row(name, header.stem, results, tests))
    page = "\n".join([
        "# Ops",
        "",
        "Written by `scripts/check_ops.py`; do not edit. *By its parts*: the op is put together from",
        "other ops, whose backward it uses. *None*: the result has no gradient. *No kernel*: it changes",
        "shapes and strides only, or is put together from other ops. A dash: not there yet.",
        "",
        "| Op | Forward | Backward | CPU | CUDA | Test |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows, ""])
    target = ROOT / "docs/ops.md"
    if sys.argv[1:] == ["--check"]:
        if not target.exists() or target.read_text() != page:
            wrong.append("docs/ops.md is stale: run scripts/check_ops.py")
    else:
        target.write_text(page)
    print("\n".join(wrong + [f"ops: {len(rows)}, {len(wrong)} problems"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
