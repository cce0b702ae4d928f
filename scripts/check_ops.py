#!/usr/bin/env python3
"""Lists the public ops and writes docs/ops.md.

usage: check_ops.py           writes docs/ops.md
       check_ops.py --check   fails when docs/ops.md is stale

Both fail when an op has no docstring, or when tests/*/test_<stem>.cpp (or test_<stem>_*.cpp) holds no
gradcheck of it (no test, where a gradcheck is impossible). A public op is a free function declared in
autograd/<stem>.h that returns a tensor, a TensorList or a struct of tensors. op_graph.py finds its kernels.
"""
import pathlib
import re
import sys

from op_graph import OpGraph, TAPE, kernel_file, without_comments_and_text

ROOT = pathlib.Path(__file__).resolve().parent.parent
# No gradcheck is possible: the result is integer or boolean, does not depend on values, or is random;
# and the only other device of a build without CUDA is meta.
NO_GRADCHECK = {"argmax", "argmin", "argsort", "floor_divide", "count_experts", "count_top_experts", "count_valid", "eq", "ne", "lt", "le",
                "gt", "ge", "floor", "ceil", "round", "sign", "isnan", "isinf", "isfinite", "logical_and", "logical_or",
                "logical_not", "any", "all", "one_hot", "rope_tables", "sort_by_expert", "to_device", "random_logits", "sinkhorn"}

# Products of operands that are rounded to FP8, a step function without a derivative to check; they take no f64.
# tests/autograd/test_fp8_linear.cpp compares them with products of the rounded numbers.
FP8 = {"fp8", "fp8_linear", "fp8_products", "fp8_rows"}


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


def ops_of(path, results):
    """{name: has a docstring} of the functions in a header that return one of these types, overloads as one."""
    source = path.read_text()
    if set(re.findall(r"^namespace ([\w:]+) \{", source, re.M)) == {"weft::detail"}:
        return {}  # a part of an op
    code = without_comments_and_text(source)
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
    return ops


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
    return f"[{text}](../{path})" if path else "—"


def both(forward, backward):
    """A cell about the two directions."""
    return "; ".join(filter(None, [", ".join(forward), backward and "backward: " + ", ".join(backward)]))


def kernel_cell(forward, backward, is_view, namespace):
    def links(calls):
        for kernel, cpu_file in calls.kernels.items():
            path = cpu_file if namespace == "cpu" and cpu_file else kernel_file(namespace, kernel)
            yield link(path.relative_to(ROOT), kernel)
    without = "view, no kernel" if is_view else "no kernel"
    return both(list(links(forward)) or [without], list(links(backward)))


def row(name, stem, graph, tests):
    forward, backward, recorded = graph.calls(name)
    place = next(d.path.relative_to(ROOT) for d in graph.roots(name))
    if recorded:
        gradient = link(recorded.relative_to(ROOT))
    else:
        gradient = "none" if name in NO_GRADCHECK else "by its parts"
    test = next(iter(tests), None)
    cells = [link(f"autograd/{stem}.h", f"`{name}`"), link(place), gradient,
             *(kernel_cell(forward, backward, graph.is_view(name), n) for n in ("cpu", "cuda")),
             both([f"`{o}`" for o in forward.ops], [f"`{o}`" for o in backward.ops]) or "—",
             link(test, test and pathlib.Path(test).stem)]
    return f"| {' | '.join(cells)} |"


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    words = {str(p.relative_to(ROOT)): tested(p) for p in sorted(ROOT.glob("tests/*/test_*.cpp"))
             if p.parent.name != "cuda"}
    declared, wrong = [], []
    headers = [h for h in sorted(ROOT.glob("autograd/*.h")) if h.stem not in TAPE | FP8]
    results = {"Tensor", "TensorList"}.union(*(structs_of_tensors(without_comments_and_text(h.read_text())) for h in headers))
    for header in headers:
        declared += [(header.stem, *op) for op in ops_of(header, results).items()]
    graph = OpGraph(name for _, name, _ in declared)
    rows = []
    for stem, name, documented in declared:
        family = [t for t in words if re.match(rf"tests/\w+/test_{stem}(_\w+)?\.cpp", t)]
        kind = "test" if name in NO_GRADCHECK else "gradcheck"
        tests = [t for t in family if name in words[t][kind]]
        if not tests:
            wrong.append(f"autograd/{stem}.h: {name} has no {kind} in tests/autograd/test_{stem}.cpp")
        if not documented:
            wrong.append(f"autograd/{stem}.h: {name} has no docstring")
        rows.append(row(name, stem, graph, tests))
    page = "\n".join([
        "# Ops",
        "",
        "Written by `scripts/check_ops.py` from the sources; do not edit. `test_generated_ops` runs every op and",
        "compares the table with the kernels that run ([how](reliability.md#kernels-of-every-op)).",
        "",
        "* **Backward**: the file that records the op. *By its parts*: only the ops that it calls are recorded.",
        "  *None*: the result has no gradient.",
        "* **CPU**, **CUDA**: the kernels that the op runs, each with the file that defines it. Rows of called ops",
        "  list their kernels. The tape adds gradients with `add_scaled` or the op `add`.",
        "* **Calls**: other ops that the op calls, some only for certain operands and options. Most ops copy an",
        "  operand with `contiguous` if their kernel needs it.",
        "* *backward:* in a cell: only the backward pass, or a derivative of it, runs these.",
        "",
        "| Op | Forward | Backward | CPU | CUDA | Calls | Test |",
        "| --- | --- | --- | --- | --- | --- | --- |",
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
