"""What goes wrong in the simulated library, and when."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NoReturn


class Fault:
    """A rule of the scenario: which calls, on which card, from when to when (seconds), how often in this process, and
    what happens: an NVML code, a delay in seconds, a hang, a crash, or a value in the place of every answer.
    """

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self._call: str | None = plain["call"]
        self._gpu: int | str | None = plain["gpu"]
        self._start: float = plain["start"]
        self._end: float = float("inf") if plain["end"] is None else plain["end"]
        self._left: float = float("inf") if plain["times"] is None else plain["times"]
        self._code: int | None = plain["code"]
        self._delay: float | None = plain["delay"]
        self._hang: bool = plain["hang"]
        self._crash: bool = plain["crash"]
        self.value: int | None = plain["value"]

    def concerns(self, function: str) -> bool:
        """Whether it can strike a function at all."""
        return self._call is None or fnmatchcase(function, self._call)

    def due(self, t: float, index: int | None, uuid: str | None) -> bool:
        """Whether it strikes now; counts the strike."""
        if not self._start <= t < self._end or self._left <= 0:
            return False
        if self._call is None and index is None:  # no call about a card
            return False
        if self._gpu is not None and self._gpu not in (index, uuid):
            return False
        self._left -= 1
        return True

    def strike(self) -> int | None:
        """Let it happen; returns the code that the call is to answer, None if it goes on as usual."""
        if self._delay is not None:
            time.sleep(self._delay)
        if self._hang:
            _hang()
        if self._crash:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.kill(os.getpid(), signal.SIGSEGV)
        return self._code


def _hang() -> NoReturn:
    """Never return. A call stuck in the kernel lets Python run no signal handler, so only SIGKILL helps here too; but a
    simulated one ends with its parent and leaves nothing behind.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def spoil(arguments: Sequence[Any], value: int) -> None:
    """Write `value` over every number that a call has answered, and bytes that are no UTF-8 over every text. The count
    of a list stays, since the binding allocates as much as it says.
    """
    is_list = any(isinstance(a, ctypes.Array) and issubclass(a._type_, ctypes.Structure) for a in arguments)
    sizes_a_list = len(arguments) > 1 and arguments[-1] is None
    for argument in arguments:
        target = getattr(argument, "_obj", argument)
        if isinstance(target, ctypes.Structure):
            _spoil_structure(target, value)
        elif isinstance(target, ctypes.Array) and issubclass(target._type_, ctypes.c_char):
            target.value = b"\xff"
        elif isinstance(target, ctypes.Array):
            for item in target:
                _spoil_structure(item, value)
        elif target is not argument and not is_list and not sizes_a_list:
            target.value = value


def _spoil_structure(structure: ctypes.Structure, value: int) -> None:
    union = next((name for name, kind, *_ in structure._fields_ if issubclass(kind, ctypes.Union)), None)
    if union:  # a field value: its type and its code stay true
        getattr(structure, union).ullVal = value
        return
    for name, kind, *_ in structure._fields_:
        if issubclass(kind, ctypes.Array):
            setattr(structure, name, b"\xff")
        elif name != "version":
            setattr(structure, name, value)
