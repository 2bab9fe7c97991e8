"""Nearly valid inputs: seeds with a few edits, in their bytes or, where they have one, in their tree."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any, TypeAlias

MAX_BYTES = 8192
_MAX_NODES = 4000  # of a tree, because repeated edits multiply its size
# A few inputs are long, to find code whose cost grows faster than its input.
_REPEATS = (2, 2, 3, 10, 100, 2000)
# The longest has more digits than Python reads (sys.set_int_max_str_digits).
_NUMBERS = (*(b"%d" % number for number in (0, 1, -1, 255, 65536, 2**31, 2**63, 2**64)), b"9" * 5000)
# Replacements for a value: other types, the ends of their ranges, and look-alikes.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, -1e308, float("nan"), float("inf"), 5e-324),
    *(2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**4000),
    *("", " ", "0", "a" * 65, "x" * 300, "\x00", "\n", "\ud800", "é", "\u202e", "٣", "1e999", "nan", "../..", "{}"),
    *([], {}, [[]], [None], {"": None}, {"v": 1}, [[[[[[[[]]]]]]]]),
)

Tree: TypeAlias = Any


def edited(data: bytes, tokens: Sequence[bytes], random: Random) -> bytes:
    """Return the bytes with one to four edits."""
    for _ in range(random.choice((1, 1, 2, 4))):
        begin, end = _slice(data, random)
        head, part, tail = data[:begin], data[begin:end], data[end:]
        match random.randrange(8):
            case 0:
                data = head + tail
            case 1:
                data = head + part * random.choice(_REPEATS) + tail
            case 2:
                data = head + random.choice(tokens) + data[begin:]
            case 3:
                data = head + random.choice(tokens) + tail
            case 4:
                data = head + random.randbytes(random.randrange(1, 5)) + tail
            case 5:
                data = head + random.choice(tokens) * random.choice(_REPEATS) + tail
            case 6:
                data = head + random.choice(_NUMBERS) + tail
            case _:
                flipped = bytes([byte ^ (1 << random.randrange(8)) for byte in part[:1]])
                data = head + flipped + part[1:] + tail
        data = data[:MAX_BYTES]
    return data


def _slice(data: bytes, random: Random) -> tuple[int, int]:
    begin = random.randrange(len(data) + 1)
    length = random.choice((0, 1, 1, 4, 16, len(data)))
    return begin, min(len(data), begin + random.randrange(length + 1))


def grafted(tree: Tree, random: Random) -> Tree:
    """Return the tree (of JSON's types) with one to three of its nodes replaced, removed, repeated or moved."""
    tree = copy.deepcopy(tree)
    for _ in range(random.choice((1, 1, 2, 3))):
        nodes = _nodes(tree)
        if len(nodes) > _MAX_NODES:
            break
        if not nodes:
            return random.choice(ODD)
        parent, key = random.choice(nodes)
        match random.randrange(6):
            case 0:
                del parent[key]
            case 1:
                parent[key] = copy.deepcopy(random.choice(nodes)[0])
            case 2 if isinstance(parent, list):
                size = 1 + len(_nodes(parent[key]))
                parent.extend([parent[key]] * min(random.choice(_REPEATS), _MAX_NODES // size))
            case 2:
                parent[str(random.choice(ODD))[:80]] = parent[key]
            case 3 if isinstance(parent[key], int | float) and abs(parent[key]) < 1e300:
                parent[key] *= random.choice((-1, 0, 2, 1000, 1e-9, 2**40))
            case _:
                parent[key] = copy.deepcopy(random.choice(ODD))
    return tree


def _nodes(tree: Tree) -> list[tuple[Any, Any]]:
    """Return (container, key) of every node but the root."""
    keys: list[Any] = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    return [(tree, key) for key in keys] + [node for key in keys for node in _nodes(tree[key])]


def dumped(tree: Tree) -> bytes:
    """Return a tree as JSON, which is also YAML."""
    return json.dumps(tree, separators=(", ", ": ")).encode()[: 4 * MAX_BYTES]
