"""Recordings of the NVML library, which replay.py describes and replays."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, TextIO

from qa.gpu.replay import FORMAT, argument_of, content, target


class Recorder:
    """Replaces the library: it calls the library and writes each call to `file`."""

    def __init__(self, library: Any, file: TextIO, driver_version: str) -> None:
        self._library, self._file = library, file
        facts = {
            "recording": FORMAT,
            "date": time.strftime("%Y-%m-%d"),
            "driver_version": driver_version,
            "binding": version("nvidia-ml-py"),
            "kernel": platform.release(),
        }
        self._write(facts)

    def __getattr__(self, function: str) -> Callable[..., int]:
        """Return a function of the library that is recorded. Raises AttributeError if the library lacks it."""
        inner = getattr(self._library, function)

        def call(*arguments: Any) -> int:
            before = [argument_of(a) for a in arguments]
            began = time.perf_counter()
            code: int = inner(*arguments)
            took = time.perf_counter() - began
            outputs = {str(i): content(t) for i, t in enumerate(map(target, arguments)) if t is not None}
            self._write({"f": function, "a": before, "r": code, "o": outputs, "us": round(took * 1e6, 1)})
            return code

        return call

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
