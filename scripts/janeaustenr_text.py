#!/usr/bin/env python3
"""Decodes the novels of Debian's package r-cran-janeaustenr into one plain text file.

usage: janeaustenr_text.py Rdata.rdb OUT.txt

Rdata.rdb is a sequence of blocks, each [u32 big-endian raw size][zlib stream]. A block holds one novel as
a character vector in R's XDR serialisation: one string per line of the book.
"""
import os
import struct
import sys
import zlib

STRSXP, CHARSXP = 16, 9


def blocks(data):
    """The decompressed blocks of an .rdb file."""
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        stream = zlib.decompressobj()
        raw = stream.decompress(data[at + 4:])
        if not stream.eof or len(raw) != size:
            raise ValueError(f"block at byte {at}: {len(raw)} bytes where {size} were announced")
        yield raw
        at = len(data) - len(stream.unused_data)


def strings(raw):
    """The strings of one serialised character vector, as bytes."""
    if raw[:2] != b"X\n":
        raise ValueError("not an XDR serialisation")
    (version,) = struct.unpack_from(">i", raw, 2)
    at = 14  # format version, version of the writer, oldest reader
    if version == 3:  # names its encoding
        (length,) = struct.unpack_from(">i", raw, at)
        at += 4 + length
    flags, count = struct.unpack_from(">ii", raw, at)
    if flags & 0xFF != STRSXP:
        raise ValueError(f"object of type {flags & 0xff} where a character vector was expected")
    at += 8
    for _ in range(count):
        flags, length = struct.unpack_from(">ii", raw, at)
        if flags & 0xFF != CHARSXP or length < 0 or at + 8 + length > len(raw):
            raise ValueError(f"bad string at byte {at}")
        yield raw[at + 8:at + 8 + length]
        at += 8 + length


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], "rb") as f:
        data = f.read()
    text = b"".join(line + b"\n" for raw in blocks(data) for line in strings(raw))
    beside = sys.argv[2] + ".part"
    with open(beside, "wb") as f:
        f.write(text)
    os.replace(beside, sys.argv[2])
    print(f"{sys.argv[2]}: {len(text)} bytes")


if __name__ == "__main__":
    main()
