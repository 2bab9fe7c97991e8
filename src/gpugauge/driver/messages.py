"""An answer on its way from the worker to the daemon: what is left out, and what is packed. Standard library only."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpugauge.driver.api import Reply

# A sample of a ring, as NVML lays it out: microseconds and percent. They are most of what is sent, and travel as the
# driver wrote them, in hexadecimal: a tenth of what it takes to make numbers of them, text of those, and numbers again.
SAMPLE = struct.Struct("=QI4x")
PERCENT_UNKNOWN = 0xFFFFFFFF
# Said in every answer; what else is empty is left out.
_ALWAYS = frozenset({"id", "op", "index"})


def message(**answer: Any) -> dict[str, Any]:
    """Return an answer as it is sent: Reply's fields without those that are empty."""
    return {name: value for name, value in answer.items() if value or (name in _ALWAYS and value is not None)}


def reply(message: dict[str, Any]) -> Reply:
    """Return the answer that was sent. Raises ValueError or TypeError on what is none."""
    from gpugauge.driver.api import Reply  # noqa: PLC0415  (the worker only sends)

    samples = message.get("samples")
    if samples:
        if not isinstance(samples, dict):
            raise TypeError("samples are an object")
        message["samples"] = {name: unpacked(s) if isinstance(s, str) else s for name, s in samples.items()}
    return Reply(**message)


def packed(samples: Iterable[tuple[int, int]]) -> bytes:
    """Pack microseconds and percent of each sample."""
    return b"".join(SAMPLE.pack(*sample) for sample in samples)


def unpacked(text: str) -> list[tuple[int, int]]:
    """Return microseconds and percent of each sample. Raises ValueError."""
    data = bytes.fromhex(text)
    if len(data) % SAMPLE.size:
        raise ValueError("samples of a length that none has")
    return list(SAMPLE.iter_unpack(data))
