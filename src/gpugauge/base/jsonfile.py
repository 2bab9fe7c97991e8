"""A file that a daemon keeps for the next one. What others put in its place neither blocks nor is followed."""

from __future__ import annotations

import json
import math
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

_MAX_BYTES = 1 << 20
_MAX_INTEGER = 1 << 63


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file. Raises OSError."""
    # Opening a named pipe without O_NONBLOCK waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is no regular file")
        return file.read(_MAX_BYTES)


def read(path: Path) -> Any:
    """Return the content of a JSON file, with finite numbers only. Raises OSError or ValueError."""
    try:
        return json.loads(read_bytes(path), parse_int=_integer, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def replace(path: Path, content: object) -> None:
    """Replace a JSON file at once. Raises OSError."""
    replace_bytes(path, (json.dumps(content, indent=1) + "\n").encode())


def replace_bytes(path: Path, data: bytes) -> None:
    """Replace the file at once. Raises OSError."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        new.unlink()  # of a daemon with this pid that was killed, or of another user: a link would be followed
    try:
        with new.open("xb") as file:
            file.write(data)
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise


def _integer(text: str) -> int:
    if len(text) > 20 or abs(found := int(text)) >= _MAX_INTEGER:
        raise ValueError("a number is too large")
    return found


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError("a number is not finite")
    return found
