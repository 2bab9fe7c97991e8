"""Faults of the simulated library."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn


class Fault:
    """A fault of the scenario (scenario/model.py), with the number of times that are left in this process."""

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self._plain = plain
        self._left: float = float("inf") if plain["times"] is None else plain["times"]
        self._matched = 0
        self._leaked: list[bytes] = []
        self.value: int | None = plain["value"]
        self.member: str | None = plain["member"]

    def concerns(self, function: str) -> bool:
        """Return whether the fault can apply to a function."""
        pattern = self._plain["call"]
        return pattern is None or fnmatchcase(function, pattern)

    def due(self, t: float, index: int | None, uuid: str | None) -> bool:
        """Return whether the fault applies to a call at `t`, and count it."""
        plain = self._plain
        if t < plain["start"] or (plain["end"] is not None and t >= plain["end"]) or self._left <= 0:
            return False
        if plain["call"] is None and index is None:  # not a call about a GPU
            return False
        if plain["gpu"] is not None and plain["gpu"] not in (index, uuid):
            return False
        if plain["while_exists"] is not None and not os.path.lexists(plain["while_exists"]):
            return False
        self._matched += 1
        if self._matched % plain["every"]:
            return False
        self._left -= 1
        return True

    def apply(self) -> int | None:
        """Apply the effect; return the return code of the call, None if the call proceeds."""
        plain = self._plain
        if plain["delay"] is not None:
            time.sleep(plain["delay"])
        if plain["hang"]:
            _hang()
        if plain["stat"] is not None:
            Path(plain["stat"]).stat()
        if plain["leak"]:
            self._leaked.append(b"\1" * plain["leak"])
        if plain["crash"]:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.kill(os.getpid(), signal.SIGSEGV)
        code: int | None = plain["code"]
        return code


def _hang() -> NoReturn:
    """Never return, whatever signal comes but SIGKILL; the process ends together with its parent."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def spoil(arguments: Sequence[Any], value: int, member: str | None = None) -> None:
    """Write `value` into every number that a call has returned, and bytes that are not UTF-8 into every text; with
    `member`, only into that of structures. The length of a list stays: the binding allocates that much.
    """
    targets = [getattr(argument, "_obj", argument) for argument in arguments]
    is_list = any(isinstance(t, ctypes.Array) and issubclass(t._type_, ctypes.Structure) for t in targets)
    sizes_a_list = len(arguments) > 1 and any(argument is None for argument in arguments)
    for argument, target in zip(arguments, targets, strict=True):
        if isinstance(target, ctypes.Structure):
            _spoil_structure(target, value, member)
        elif isinstance(target, ctypes.Array) and issubclass(target._type_, ctypes.c_char):
            target.value = b"\xff" if member is None else target.value
        elif isinstance(target, ctypes.Array) and not issubclass(target._type_, ctypes.Structure):
            target[:] = [value if member is None else item for item in target]
        elif isinstance(target, ctypes.Array):
            for item in target:
                _spoil_structure(item, value, member)
        elif target is not argument and not (is_list or sizes_a_list or member) and hasattr(target, "value"):
            target.value = value  # pointers have none, and stay: an invalid handle would crash the caller


def _spoil_structure(structure: ctypes.Structure, value: int, member: str | None) -> None:
    fields = {name: kind for name, kind, *_ in structure._fields_}
    if member is not None:
        if member in fields:
            setattr(structure, member, value)
        return
    union = next((name for name, kind in fields.items() if issubclass(kind, ctypes.Union)), None)
    if union:  # a field value or a sample: its type, code and time stay
        getattr(structure, union).ullVal = value
        return
    metrics = getattr(structure, "metrics", None)
    if metrics is not None:  # a request for GPM metrics: its inputs stay
        for metric in metrics:
            metric.value = value
        return
    for name, kind in fields.items():
        if issubclass(kind, ctypes.Array):
            setattr(structure, name, b"\xff")
        elif name != "version" and not hasattr(kind, "contents"):  # not a pointer
            setattr(structure, name, value)
