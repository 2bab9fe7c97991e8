"""The frames between daemon and worker: a length and one JSON object. Standard library only."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_HEADER = struct.Struct("!I")
MAX_FRAME = 16 << 20


def send_frame(channel: socket.socket, message: dict[str, Any]) -> None:
    """Write one length-prefixed JSON frame; raises OSError when the other end is gone."""
    body = json.dumps(message, separators=(",", ":")).encode()
    channel.sendall(_HEADER.pack(len(body)) + body)


def receive_frame(channel: socket.socket) -> dict[str, Any]:
    """Read one frame; raises EOFError at the end, TimeoutError past the socket's time-out, ValueError on garbage."""
    (length,) = _HEADER.unpack(_receive_exactly(channel, _HEADER.size))
    if length > MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes is longer than {MAX_FRAME}")
    try:
        message = json.loads(_receive_exactly(channel, length))
    except RecursionError:
        raise ValueError("a frame is nested too deeply") from None
    if not isinstance(message, dict):
        raise TypeError("a frame holds a JSON object")
    return message


def _receive_exactly(channel: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(size - len(parts))
        if not part:
            raise EOFError("the other end closed the pipe")
        parts += part
    return bytes(parts)
