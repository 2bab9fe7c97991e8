"""Frames between the daemon and the worker: a length and one JSON object. Standard library only."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_HEADER = struct.Struct("!I")
MAX_FRAME = 16 << 20
PULSE_BYTES = 8  # of the memory in which a worker shows its progress: a time in seconds
_RECEIVE_BYTES = 1 << 16  # per call, so that one call returns the replies of many GPUs

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_decode = json.JSONDecoder().decode


def frame(message: dict[str, Any]) -> bytes:
    """Return a message as a length-prefixed JSON frame."""
    body = _encode(message).encode()
    return _HEADER.pack(len(body)) + body


def decoded(body: bytes | bytearray) -> dict[str, Any]:
    """Return the message in the body of a frame. Raises ValueError or TypeError."""
    try:
        message = _decode(body.decode())
    except RecursionError:
        raise ValueError("a frame is nested too deeply") from None
    if not isinstance(message, dict):
        raise TypeError("a frame holds a JSON object")
    return message


class Inbox:
    """The frames received from a socket."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._bytes = bytearray()

    def fill(self) -> None:
        """Receive the available bytes; a blocking socket waits for them. Raises EOFError or OSError."""
        part = self._channel.recv(_RECEIVE_BYTES)
        if not part:
            raise EOFError("the other end closed the socket")
        self._bytes += part

    def ready(self) -> bool:
        """Return whether `take` returns a frame or raises."""
        have = len(self._bytes) - _HEADER.size
        if have < 0:
            return False
        length: int = _HEADER.unpack_from(self._bytes)[0]
        return length > MAX_FRAME or have >= length  # `take` rejects the former

    def take(self) -> dict[str, Any] | None:
        """Return the next message, None until its frame is complete. Raises ValueError or TypeError."""
        if len(self._bytes) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._bytes)
        if length > MAX_FRAME:
            raise ValueError(f"a frame of {length} bytes is longer than {MAX_FRAME}")
        end = _HEADER.size + length
        if len(self._bytes) < end:
            return None
        body = self._bytes[_HEADER.size : end]
        del self._bytes[:end]
        return decoded(body)

    def receive(self) -> dict[str, Any]:
        """Return the next message from a blocking socket. Raises what `fill` and `take` raise."""
        while (message := self.take()) is None:
            self.fill()
        return message
