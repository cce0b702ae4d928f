#!/usr/bin/env python3
"""Draws docs/architecture.svg from the includes: a box for each folder of the product, as low as its
dependencies allow, and an arrow for each folder that it includes but those that follow from others.

usage: scripts/draw_architecture.py [--check]     --check: fail when the picture is not fresh"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "architecture.svg"
SAYS = {
    "core": "tensors, memory, CPU kernels", "cuda": "CUDA kernels, emulated GPU", "autograd": "tape and ops",
    "nn": "modules, Gpt", "optim": "optimizers, schedules", "io": "files, checkpoints", "tokenizer": "text to tokens", "data": "datasets, loaders",
    "distributed": "ranks, collectives, plans", "train": "trainer, flags, runs", "examples": "programs",
}
WIDTH, BOX_W, BOX_H, GAP_Y = 860, 196, 52, 44


def includes():
    """{folder: folders that its files include}."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.h", "*.cpp", "*.cu", "*.inc"], cwd=ROOT,
                           check=True, capture_output=True, text=True).stdout.split()
    found = {folder: set() for folder in SAYS}
    for name in names:
        folder = name.split("/")[0]
        if folder not in found or not (ROOT / name).exists():
            continue
        targets = re.findall(r'#include "weft/(\w+)/', (ROOT / name).read_text())
        found[folder] |= {t for t in targets if t in found and t != folder}
    return found


def floors(uses):
    """How many floors lie below each folder."""
    level = {}

    def of(folder):
        if folder not in level:
            level[folder] = 1 + max((of(f) for f in uses[folder]), default=-1)
        return level[folder]

    for folder in uses:
        of(folder)
    return level


def reachable(uses, folder):
    out = set()
    for f in uses[folder]:
        out |= {f} | reachable(uses, f)
    return out


def draw():
    uses = includes()
    level = floors(uses)
    top = max(level.values())
    place = {}
    for floor in range(top + 1):
        row = [f for f in SAYS if level[f] == floor]
        for i, folder in enumerate(row):
            x = WIDTH / 2 + (i - (len(row) - 1) / 2) * (BOX_W + 20)
            place[folder] = (x, 20 + (top - floor) * (BOX_H + GAP_Y))
    height = 40 + top * (BOX_H + GAP_Y) + BOX_H
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
           'font-family="system-ui, sans-serif">',
           '<title>Folders of Weft; an arrow means "includes"</title>',
           '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
           'orient="auto"><path d="M0 0 8 4 0 8z" fill="#8a8f98"/></marker></defs>',
           f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>']
    for folder in SAYS:
        direct = {f for f in uses[folder] if not any(f in reachable(uses, g) for g in uses[folder])}
        for other in sorted(direct):
            (x0, y0), (x1, y1) = place[folder], place[other]
            out.append(f'<line x1="{x0:.0f}" y1="{y0 + BOX_H}" x2="{x1:.0f}" y2="{y1 - 2}" stroke="#8a8f98" '
                       'stroke-width="1.5" marker-end="url(#tip)"/>')
    for folder, (x, y) in place.items():
        out += [f'<rect x="{x - BOX_W / 2:.0f}" y="{y}" width="{BOX_W}" height="{BOX_H}" rx="6" fill="#eef3fb" '
                'stroke="#3b6bb5"/>',
                f'<text x="{x:.0f}" y="{y + 22}" text-anchor="middle" font-size="16" font-weight="600" '
                f'fill="#1c2733">{folder}</text>',
                f'<text x="{x:.0f}" y="{y + 41}" text-anchor="middle" font-size="13" fill="#47525e">{SAYS[folder]}'
                '</text>']
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    fresh = draw()
    if sys.argv[1:] == ["--check"]:
        if not PICTURE.exists() or PICTURE.read_text() != fresh:
            sys.exit("draw_architecture: docs/architecture.svg is not fresh; run scripts/draw_architecture.py")
        print("architecture: the picture is fresh")
        return
    if sys.argv[1:]:
        sys.exit("usage: draw_architecture.py [--check]")
    PICTURE.write_text(fresh)


if __name__ == "__main__":
    main()
