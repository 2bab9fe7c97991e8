"""The C library over a simulated world, with the world's faults around every function."""
# ruff: noqa: SLF001  (`_obj` is what ctypes offers)

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from gpugauge.driver.simulated.faults import spoil
from gpugauge.driver.simulated.functions import (
    DEVICE_FUNCTIONS,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
    fill,
    plain,
)
from gpugauge.driver.simulated.world import Card, World

_UNINITIALIZED = 1


class Library:
    """Stands where `ctypes.CDLL("libnvidia-ml.so.1")` stands: an attribute is a C function."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._initialized = False

    def __getattr__(self, function: str) -> Callable[..., int]:
        """Return the function, with the faults that concern it; AttributeError where the driver does not export it."""
        if function not in FUNCTIONS or self._world.lacks(function):
            raise AttributeError(function)
        if function in DEVICE_FUNCTIONS:
            return self._device_function(function)
        return self._system_function(function)

    def _system_function(self, function: str) -> Callable[..., int]:
        answer = SYSTEM_FUNCTIONS[function]

        def call(*arguments: Any) -> int:
            if not self._initialized and function != "nvmlInitWithFlags":
                return _UNINITIALIZED
            # nvmlDeviceGetHandleByIndex is about a card before there is a handle.
            index = plain(arguments[0]) if function == "nvmlDeviceGetHandleByIndex_v2" else None
            card = self._world.cards[index] if index is not None and index < len(self._world.cards) else None
            return self._faulty(function, card, lambda _t: answer(self, *arguments), arguments)

        return call

    def _device_function(self, function: str) -> Callable[..., int]:
        answer = DEVICE_FUNCTIONS[function]
        cards = self._world.cards
        supported = [card.supports(function) for card in cards]
        faulty = any(fault.concerns(function) for fault in self._world.faults)

        def call(handle: Any, *arguments: Any) -> int:
            if not self._initialized:
                return _UNINITIALIZED
            number = (ctypes.c_void_p.from_buffer(handle).value or 0) - 1
            if not 0 <= number < len(cards):
                return INVALID_ARGUMENT
            card = cards[number]

            def normal(t: float) -> int:
                return answer(card, t, *arguments) if supported[number] else NOT_SUPPORTED

            return self._faulty(function, card, normal, arguments) if faulty else normal(self._world.now())

        return call

    def _faulty(
        self, function: str, card: Card | None, normal: Callable[[float], int], arguments: tuple[Any, ...]
    ) -> int:
        """Let the faults of this moment happen around the normal answer."""
        t = self._world.now()
        index, uuid = (card.index, card.uuid) if card else (None, None)
        due = [f for f in self._world.faults if f.concerns(function) and f.due(t, index, uuid)]
        for fault in due:
            code = fault.strike()
            if code is not None:
                return code
        result = normal(self._world.now())
        for fault in due:
            if fault.value is not None and result == SUCCESS:
                spoil(arguments, fault.value)
        return result

    def init(self, _flags: Any) -> int:
        """Initialise; without cards too."""
        self._initialized = True
        return SUCCESS

    def shutdown(self) -> int:
        """Undo `init`."""
        self._initialized = False
        return SUCCESS

    def count(self, out: Any) -> int:
        """Write the number of cards."""
        out._obj.value = len(self._world.cards)
        return SUCCESS

    def handle(self, index: Any, out: Any) -> int:
        """Write a handle, which here is the number of the card, counted from 1 so that it is not null."""
        number = plain(index)
        if number >= len(self._world.cards):
            return INVALID_ARGUMENT
        ctypes.c_void_p.from_buffer(out._obj).value = number + 1
        return SUCCESS

    def driver_version(self, buffer: Any, length: Any) -> int:
        """Write the version of the driver."""
        return fill(buffer, length, self._world.driver_version)

    def nvml_version(self, buffer: Any, length: Any) -> int:
        """Write the version of the library, which carries the CUDA major version in front."""
        return fill(buffer, length, f"{self._world.cuda_version // 1000}.{self._world.driver_version}")

    def cuda_version(self, out: Any) -> int:
        """Write the CUDA version that the driver supports."""
        out._obj.value = self._world.cuda_version
        return SUCCESS


SYSTEM_FUNCTIONS: dict[str, Callable[..., int]] = {
    "nvmlInitWithFlags": Library.init,
    "nvmlShutdown": Library.shutdown,
    "nvmlDeviceGetCount_v2": Library.count,
    "nvmlDeviceGetHandleByIndex_v2": Library.handle,
    "nvmlSystemGetDriverVersion": Library.driver_version,
    "nvmlSystemGetNVMLVersion": Library.nvml_version,
    "nvmlSystemGetCudaDriverVersion_v2": Library.cuda_version,
}
FUNCTIONS = frozenset((*DEVICE_FUNCTIONS, *SYSTEM_FUNCTIONS))
