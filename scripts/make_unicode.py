#!/usr/bin/env python3
"""Writes tokenizer/unicode_tables.inc: the character classes of Unicode 16, and the NFC data of the reference.

usage: scripts/make_unicode.py     needs `pip install tokenizers`

The tables are read off the reference library, tokenizers 0.23, rather than the Unicode files of the system, which are
older: a tokenizer must agree with the library that made its vocabulary for every code point. (Its NFC knows fewer
marks than its classes do.) The script checks the counts of Unicode 16 and each composition before it writes."""
import pathlib
import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tokenizer" / "unicode_tables.inc"
CLASSES = [r"\p{Lu}", r"\p{Ll}", r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{M}", r"\p{N}", r"\p{P}", r"\p{S}", r"\s"]
COUNTS = {"L": 141028, "M": 2501, "N": 1911, "P": 855, "S": 8514, "s": 25}
EVERY = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
HANGUL = range(0xAC00, 0xD7A4)


def members(pattern):
    """All code points that the reference puts into a class."""
    negated = "[^" + pattern + "]+"
    split = pre_tokenizers.Split(Regex(negated), "removed")
    return [ord(c) for piece, _ in split.pre_tokenize_str(EVERY) for c in piece]


def class_ranges():
    of = bytearray(0x110000)
    counts = {}
    for i, pattern in enumerate(CLASSES, 1):
        found = members(pattern)
        for c in found:
            assert of[c] == 0, f"U+{c:04X} is in two classes"
            of[c] = i
        key = pattern[3] if pattern.startswith(r"\p") else "s"
        counts[key] = counts.get(key, 0) + len(found)
    assert counts == COUNTS, counts
    return [(c, of[c]) for c in range(0x110000) if c == 0 or of[c] != of[c - 1]]


NFC, NFD = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str


def combining_classes():
    """{code: combining class}, found by where the reference sorts a mark among one mark of each class. A mark newer
    than the reference's own table is not one to it."""
    known, low, high = {}, chr(0x334), chr(0x345)  # classes 1 and 240
    for c in EVERY:
        if k := unicodedata.combining(c):
            if NFD(high + c) != high + c or NFD(c + low) != c + low:
                known.setdefault(k, c)
    order = sorted(known)
    out = {}
    for c in EVERY:
        if ord(c) in HANGUL or NFD(c) != c:
            continue
        before = known[order[-1]] + c
        after = c + known[order[0]]
        if NFD(before) == before and NFD(after) == after and unicodedata.combining(c) == 0:
            continue
        below = [k for k in order if NFD(c + known[k]) != c + known[k]]
        above = [k for k in order if NFD(known[k] + c) != known[k] + c]
        same = [k for k in order if k not in below and k not in above]
        if len(same) == 1:
            out[ord(c)] = same[0]
        else:
            assert same == order, f"U+{ord(c):04X}: {same}"
    return out


def decompositions():
    return {ord(c): [ord(d) for d in NFD(c)] for c in EVERY if ord(c) not in HANGUL and NFD(c) != c}


def compositions(decomposed):
    out = []
    for code, full in sorted(decomposed.items()):
        if NFC(chr(code)) != chr(code):
            continue  # excluded from composition
        first, last = NFC("".join(map(chr, full[:-1]))), chr(full[-1])
        assert len(first) == 1 and NFC(first + last) == chr(code), f"U+{code:04X}"
        out.append((ord(first), ord(last), code))
    return sorted(out)


def rows(values, form="0x{:X}"):
    line, lines = "", []
    for v in values:
        item = form.format(v) + ","
        if len(line) + len(item) > 118:
            lines.append(line)
            line = ""
        line += item
    return "\n".join(lines + [line])


def main():
    ranges = class_ranges()
    marks = combining_classes()
    decomposed = decompositions()
    composed = compositions(decomposed)
    flat = [v for code, full in sorted(decomposed.items()) for v in [code << 3 | len(full), *full]]
    text = f"""// Written by scripts/make_unicode.py from the reference library (Unicode 16). Do not edit.
// clang-format off
// {len(ranges)} runs of code points with one class: first code point << 4 | class.
constexpr std::uint32_t kClassRuns[] = {{
{rows(c << 4 | k for c, k in ranges)}
}};
// {len(marks)} combining marks: code point << 8 | combining class.
constexpr std::uint32_t kMarks[] = {{
{rows(c << 8 | k for c, k in sorted(marks.items()))}
}};
// {len(decomposed)} full canonical decompositions: code point << 3 | length, then the code points.
constexpr std::uint32_t kDecompositions[] = {{
{rows(flat)}
}};
// {len(composed)} pairs that compose: first, second, composed.
constexpr std::uint32_t kCompositions[] = {{
{rows(v for row in composed for v in row)}
}};
"""
    OUT.write_text(text)
    print(f"{OUT.relative_to(ROOT)}: {len(ranges)} runs, {len(marks)} marks, {len(decomposed)} decompositions, "
          f"{len(composed)} compositions")


if __name__ == "__main__":
    sys.exit(main())
