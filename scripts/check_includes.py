#!/usr/bin/env python3
"""Fails on an include that violates the dependency order of the folders.

core <- autograd <- nn <- {distributed, data} <- train <- examples;
core <- {optim, io} <- distributed; io <- nn; io <- tokenizer <- data;
cuda includes only core. tests and bench may include everything.

Fails too on a public header that does not include what defines the base class of one of its types: alone it does
not compile. And on a constant that two headers define in one namespace. With other values they are one
constant to the linker: where the compiler has not put the value into the code, as without
optimization, both files use the same one.
"""
import pathlib
import re
import subprocess
import sys

MAY_INCLUDE = {
    "core": {"core"},
    "cuda": {"core", "cuda"},
    "autograd": {"core", "autograd"},
    "nn": {"core", "autograd", "io", "nn"},
    "optim": {"core", "optim"},
    "io": {"core", "io"},
    "tokenizer": {"core", "io", "tokenizer"},
    "data": {"core", "autograd", "nn", "io", "tokenizer", "data"},
    "distributed": {"core", "autograd", "nn", "optim", "io", "distributed"},
    "train": {"core", "autograd", "nn", "optim", "io", "tokenizer", "data", "distributed", "train"},
}
# weft.h and the other headers at the root are for users: the library itself does not include them.
ROOT_MAY_INCLUDE = {"core", "autograd", "nn", "optim", "io", "tokenizer", "data", "distributed", "train"}
UNCHECKED = {"examples", "tests", "bench"}

# autograd/methods.cpp defines members declared in core/tensor.h (a + b, t.sum()): an upward call
# without an upward include, so the rule below needs no exception.

# The headers below it that the library weft_tokenizer contains: it has no tensors.
ONLY = {"tokenizer": {"weft/core/error.h", "weft/io/json.h"}}

ONE_PLACE = {  # header: the file that may include it
    "omp.h": "core/cpu/library_product.cpp",
}
MPI_FILE = re.compile(r"distributed/mpi_\w+\.cpp|tests/mpi_rules_program\.cpp")
GPU_HEADER = re.compile(r"(cuda|cublas|cudnn|cufft|curand|nccl|nvtx|nvToolsExt|cooperative_groups|mma\.h)")
# The only public header that needs another package; users include it explicitly.
THIRD_PARTY_HEADERS = {"xtensor.h"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
SUFFIXES = {".h", ".cpp", ".inc", ".cu", ".cuh"}


def is_public_header(path):
    """Whether the header is installed."""
    private = path.parts[:2] == ("core", "cpu") or path.parts[0] in UNCHECKED | {"cuda"}
    return path.suffix == ".h" and not private


def problems(root, path):
    folder = path.parts[0] if len(path.parts) > 1 else ""
    allowed = MAY_INCLUDE.get(folder, ROOT_MAY_INCLUDE)
    text = (root / path).read_text()
    for match in INCLUDE.finditer(text):
        quote, name = match.groups()
        where = f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
        if GPU_HEADER.match(name) and folder != "cuda":
            yield f"{where}: <{name}> may be included in cuda/ only"
        if name == "mpi.h" and not MPI_FILE.fullmatch(str(path)):
            yield f"{where}: <mpi.h> may be included in distributed/mpi_*.cpp only"
        if name in ONE_PLACE and str(path) != ONE_PLACE[name]:
            yield f"{where}: <{name}> may be included in {ONE_PLACE[name]} only"
        if folder in UNCHECKED:
            continue
        if name.startswith("weft/"):
            target = name.split("/")[1] if name.count("/") > 1 else ""
            if target not in allowed:
                yield f"{where}: {folder or 'the root'}/ must not include {name}"
            elif folder in ONLY and target != folder and name not in ONLY[folder]:
                yield f"{where}: {folder}/ must not include {name}: its library lacks it"
        elif quote == '"' and path.suffix != ".inc":
            yield f'{where}: write "weft/..." with the path from the root, got "{name}"'
        elif is_public_header(path) and "." in name and str(path) not in THIRD_PARTY_HEADERS:
            yield f"{where}: a public header may include weft and the standard library, got <{name}>"


CONSTANT = re.compile(r"^inline constexpr [\w:<>, ]+ (k\w+)(?:\[\w*\])? ?[={]", re.M)
NAMESPACE = re.compile(r"^(?:namespace ([\w:]+) {$|}  // namespace ([\w:]+)$)", re.M)


def constants(root, path):
    """(namespace, name) of the constants that a header defines outside functions and types."""
    text = (root / path).read_text()
    for match in CONSTANT.finditer(text):
        opened = [m for m in NAMESPACE.finditer(text, 0, match.start())]
        inside = []
        for m in opened:
            inside = [*inside, m[1]] if m[1] else inside[:-1]
        yield "::".join(inside), match[1]


def repeated(root, files):
    places = {}
    for path in files:
        if path.suffix == ".h" and path.parts[0] not in UNCHECKED:
            for name in set(constants(root, path)):
                places.setdefault(name, []).append(str(path))
    return [f"{paths[1]}: {'::'.join(name)} is in {paths[0]} too: the linker takes one for both"
            for name, paths in sorted(places.items()) if len(paths) > 1]


TYPE = re.compile(r"^(?:struct|class) (\w+)(?: final)?(?: : (?:public )?([\w:]+)[^;{]*)? {", re.M)


def without_bases(root, files):
    """What is wrong with headers that do not include, by way of others too, what defines a base class."""
    texts = {str(path): (root / path).read_text() for path in files if is_public_header(path)}
    included = {path: [name.removeprefix("weft/") for _, name in INCLUDE.findall(text)] for path, text in texts.items()}
    places = {}
    for path, text in texts.items():
        for name, _ in TYPE.findall(text):
            places.setdefault(name, set()).add(path)

    def seen_from(path, seen):
        for name in included.get(path, []):
            if name not in seen:
                seen.add(name)
                seen_from(name, seen)
        return seen

    for path, text in texts.items():
        for name, base in TYPE.findall(text):
            where = places.get(base.rsplit("::", 1)[-1], {path})
            if not where & seen_from(path, {path}):
                yield f"{path}: {name} needs the definition of {base}: include weft/{min(where)}"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, check=True,
                            capture_output=True, text=True).stdout.split("\n")
    files = [pathlib.Path(name) for name in sorted(set(listed)) if pathlib.Path(name).suffix in SUFFIXES]
    files = [path for path in files if (root / path).exists()]
    found = [line for path in files for line in problems(root, path)]
    found += [*without_bases(root, files), *repeated(root, files)]
    print("\n".join(found + [f"includes: {len(files)} files, {len(found)} wrong"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
