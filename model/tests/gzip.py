#!/usr/bin/env python3
"""Writes gzip.txt: what Python's zlib, which is zlib's own, makes of contents at CouchDB's level."""
import hashlib
import zlib

WORDS = ["couch ", "layer ", "leaf ", "branch ", "tombstone ", "key ", "value ", "a\n"]


def numbers():
    state = 0x2545F491
    while True:
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        yield state >> 24


def sample(kind, length):
    source = numbers()
    if kind == "zeros":
        return bytes(length)
    if kind == "noise":
        return bytes(next(source) for _ in range(length))
    out = bytearray()
    while len(out) < length:
        out += WORDS[next(source) % 8].encode()
    return bytes(out[:length])


def packed(content):
    deflate = zlib.compressobj(8, zlib.DEFLATED, 31, 8, zlib.Z_DEFAULT_STRATEGY)
    return deflate.compress(content) + deflate.flush()


print("# kind, bytes, bytes packed, MD5 of these: made by gzip.py with zlib", zlib.ZLIB_RUNTIME_VERSION)
for kind in ["zeros", "noise", "words"]:
    for length in [0, 1, 100, 4_096, 65_537, 300_001, 1_048_576]:
        bytes_packed = packed(sample(kind, length))
        print(kind, length, len(bytes_packed), hashlib.md5(bytes_packed).hexdigest())
