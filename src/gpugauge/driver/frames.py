"""Frames between the daemon and the worker: a length and one JSON object. Replies have no empty fields."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpugauge.driver.api import Reply

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
        if len(self._bytes) < _HEADER.size:
            return False
        length: int = _HEADER.unpack_from(self._bytes)[0]
        return length > MAX_FRAME or len(self._bytes) >= _HEADER.size + length  # `take` rejects the former

    def take(self) -> dict[str, Any] | None:
        """Return the next message, None until its frame is complete. Raises ValueError or TypeError."""
        if not self.ready():
            return None
        (length,) = _HEADER.unpack_from(self._bytes)
        if length > MAX_FRAME:
            raise ValueError(f"a frame of {length} bytes is longer than {MAX_FRAME}")
        end = _HEADER.size + length
        body = self._bytes[_HEADER.size : end]
        del self._bytes[:end]
        return decoded(body)

    def receive(self) -> dict[str, Any]:
        """Return the next message from a blocking socket. Raises what `fill` and `take` raise."""
        while (message := self.take()) is None:
            self.fill()
        return message


# A ring sample with the layout of nvmlSample_t: microseconds and percent. Samples are most of what is sent. They are
# sent as the driver wrote them, in hexadecimal, which costs a tenth of the conversion to JSON numbers and back.
SAMPLE = struct.Struct("=QI4x")
PERCENT_UNKNOWN = 0xFFFFFFFF
# Fields that every reply has; other empty fields are omitted.
_REQUIRED_FIELDS = frozenset({"id", "op", "index"})


def message(**answer: Any) -> dict[str, Any]:
    """Return the message of a reply: the fields of `Reply` that are not empty."""
    return {name: value for name, value in answer.items() if value or (name in _REQUIRED_FIELDS and value is not None)}


def reply(message: dict[str, Any]) -> Reply:
    """Return the reply of a message. Raises ValueError or TypeError."""
    from gpugauge.driver.api import Reply  # noqa: PLC0415  (the worker only sends)

    samples = message.get("samples")
    if samples:
        if not isinstance(samples, dict):
            raise TypeError("samples must be an object")
        message["samples"] = {name: unpacked(s) if isinstance(s, str) else s for name, s in samples.items()}
    return Reply(**message)


def packed(samples: Iterable[tuple[int, int]]) -> bytes:
    """Return samples, each (microseconds, percent), as packed bytes."""
    return b"".join(SAMPLE.pack(*sample) for sample in samples)


def unpacked(text: str) -> list[tuple[int, int]]:
    """Return (microseconds, percent) of each sample in hexadecimal text. Raises ValueError."""
    data = bytes.fromhex(text)
    if len(data) % SAMPLE.size:
        raise ValueError("packed samples have a wrong length")
    return list(SAMPLE.iter_unpack(data))
