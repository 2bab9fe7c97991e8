"""Messages of protobuf as bytes, for services of the kubelet with a few small messages. This is smaller than generated
code and a protobuf runtime.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator


def field(number: int, content: str | bytes) -> bytes:
    """Return a length-delimited field: a string or a message."""
    content = content.encode() if isinstance(content, str) else content
    return _as_varint(number << 3 | 2) + _as_varint(len(content)) + content


def flag(number: int) -> bytes:
    """Return a boolean field that is true; one that is false is left out."""
    return _as_varint(number << 3) + b"\x01"


def _as_varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _as_varint(rest) if rest else bytes([low])


def messages(message: bytes, number: int) -> Iterator[bytes]:
    """Yield the values of a length-delimited field: messages, strings."""
    return (value for found, value in _fields(message) if found == number)


def text(message: bytes, number: int) -> str:
    """Return a string field; the last value if it is repeated, as protobuf does."""
    return next(iter(reversed(list(messages(message, number)))), b"").decode()


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the length-delimited fields; others are skipped. Raises ValueError."""
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
        if wire_type == 2:
            yield tag >> 3, message[position:end]
        position = end


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return a varint (seven bits per byte) and the position after it. Raises ValueError."""
    value = 0
    for i, byte in enumerate(message[position : position + 10]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, position + i + 1
    raise ValueError("varint without an end")
