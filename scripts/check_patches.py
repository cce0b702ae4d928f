#!/usr/bin/env python3
"""Fails when a patch of docs/patches/ does not apply, or touches more places than its kind may.

Each patch adds one thing that users add: a flag, an optimizer, a token mixer, an activation, an op, an element-wise op. A place is a file
outside tests/ and docs/. Run it after moving code that a patch quotes; --list prints the places."""
import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_PLACES = {"activation": 1, "elementwise": 4, "flag": 2, "mixer": 2, "op": 6, "optimizer": 2}  # of a flag one is its use


def git_apply(patch, *options):
    return subprocess.run(["git", "apply", *options, str(patch)], cwd=ROOT, capture_output=True, text=True)


def places(patch):
    lines = git_apply(patch, "--numstat").stdout.splitlines()
    names = [line.split("\t")[2] for line in lines]
    return [name for name in names if not name.startswith(("tests/", "docs/"))]


def problems(patch):
    applied = git_apply(patch, "--check")
    if applied.returncode:
        yield f"does not apply: {applied.stderr.strip().splitlines()[0]}"
    if patch.stem not in MOST_PLACES:
        yield f"MOST_PLACES of {pathlib.Path(__file__).name} does not know it"
        return
    found, most = places(patch), MOST_PLACES[patch.stem]
    if not 1 <= len(found) <= most:
        yield f"must touch 1 to {most} places, got {len(found)}: {', '.join(found)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the places of each patch")
    options = parser.parse_args()
    patches = sorted((ROOT / "docs/patches").glob("*.patch"))
    missing = MOST_PLACES.keys() - {patch.stem for patch in patches}
    found = [f"{name}.patch: is not there" for name in sorted(missing)]
    for patch in patches:
        if options.list:
            print(f"{patch.name}: {', '.join(places(patch))}")
        found += [f"{patch.name}: {problem}" for problem in problems(patch)]
    print(*found, f"patches: {len(patches)}, {len(found)} wrong", sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
