"""One call of the driver's library: counted, timed, and its failure turned into DriverError."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpugauge.driver.api import IMPLAUSIBLE, DriverError

_FUNCTION_NOT_FOUND = 13
# member(structure, name): the binding's structures look at each attribute in Python, for the few that are text. Numbers
# need none of that, and thousands of them are read every second.
member = object.__getattribute__
# Symbols whose function in the binding has another name.
_BOUND_AS = {
    "nvmlDeviceGetCount_v2": "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex_v2": "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetMemoryInfo_v2": "nvmlDeviceGetMemoryInfo",
}


class Caller:
    """Calls functions of a binding (pynvml) by the symbol that the library exports."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self._calls: dict[str, list[float]] = {}

    def __call__(self, function: str, *arguments: Any, **more: Any) -> Any:
        """Call; a binding too old to have the function is like a library without the symbol. Raises DriverError."""
        bound = getattr(self.binding, _BOUND_AS.get(function, function), None)
        if bound is None:
            raise DriverError(_FUNCTION_NOT_FOUND, function)
        return self.timed(function, bound, *arguments, **more)

    def timed(self, function: str, bound: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """The same with what does the work of a function that the binding has not, or not well."""
        began = time.perf_counter()
        try:
            return bound(*arguments, **more)
        except self.binding.NVMLError as error:
            raise DriverError(error.value, function) from None
        except self.binding.NVMLLibraryMismatchError:  # no NVMLError: the library lacks a versioned symbol
            raise DriverError(_FUNCTION_NOT_FOUND, function) from None
        except UnicodeDecodeError:
            raise DriverError(IMPLAUSIBLE, function) from None
        finally:
            took = time.perf_counter() - began
            counter = self._calls.setdefault(function, [0, 0.0, 0.0])
            counter[0] += 1
            counter[1] += took
            counter[2] = max(counter[2], took)

    def take_counts(self) -> dict[str, list[float]]:
        """Return and reset the counters: number of calls, seconds, and longest seconds by function."""
        calls, self._calls = self._calls, {}
        return calls
