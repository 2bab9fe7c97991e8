"""A few messages of protobuf as bytes, without its runtime (https://protobuf.dev/programming-guides/encoding/)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator


def field(number: int, content: str | bytes) -> bytes:
    """Return a length-delimited field: a string or a message."""
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def flag(number: int) -> bytes:
    """Return a boolean field that is true; one that is false is left out."""
    return varint(number << 3) + b"\x01"


def integer(number: int, value: int) -> bytes:
    """Return a field of an unsigned integer."""
    return varint(number << 3) + varint(value)


def double(number: int, value: float) -> bytes:
    """Return a field of a double. Raises OverflowError for integers beyond float."""
    return varint(number << 3 | 1) + struct.pack("<d", value)


def signed(values: Iterable[int]) -> bytes:
    """Return integers of the types sint32 and sint64, one after the other: small ones are short, also negative ones."""
    return b"".join(varint(value << 1 if value >= 0 else (-value << 1) - 1) for value in values)


def varint(value: int) -> bytes:
    """Return an unsigned integer as a varint: seven bits per byte."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def messages(message: bytes, number: int) -> Iterator[bytes]:
    """Yield the values of a length-delimited field: messages, strings. Other fields are skipped. Raises ValueError."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        wire_type = tag & 7
        if wire_type == 0:
            _, position = _varint(message, position)
            continue
        if wire_type not in {1, 2, 5}:
            raise ValueError(f"wire type {wire_type}")
        length, position = _varint(message, position) if wire_type == 2 else (8 if wire_type == 1 else 4, position)
        end = position + length
        if end > len(message):
            raise ValueError("field longer than its message")
        if wire_type == 2 and tag >> 3 == number:
            yield message[position:end]
        position = end


def text(message: bytes, number: int) -> str:
    """Return a string field; the last value if it is repeated, as protobuf does."""
    return next(iter(reversed(list(messages(message, number)))), b"").decode()


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return a varint (seven bits per byte) and the position after it. Raises ValueError."""
    value = 0
    for i, byte in enumerate(message[position : position + 10]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, position + i + 1
    raise ValueError("varint without an end")
