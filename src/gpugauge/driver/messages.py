"""The encoding of replies from the worker to the daemon: empty fields are omitted, samples are packed. Standard library
only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpugauge.driver.api import Reply

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
