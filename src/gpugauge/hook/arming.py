"""Waits for the program to import torch. Imports nothing that an interpreter has not loaded by itself."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # the module typing is not loaded for this
if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from typing import Any

SWITCH = "GPUGAUGE_HOOK"


class Finder:
    """A finder for sys.meta_path that finds nothing itself, and calls back once one of `names` has been executed."""

    def __init__(self, names: Container[str], executed: Callable[[str], object]) -> None:
        self._names = names
        self._executed = executed

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that the other finders give for the module, with its loader's end reported to us."""
        if name not in self._names:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                self._attach(name, spec.loader)
                return spec
        return None

    def _attach(self, name: str, loader: Any) -> None:
        try:
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                _detach(loader)
                execute(module)
                self._executed(name)

            loader.exec_module = exec_module
        except AttributeError:
            pass  # a namespace package or a loader without a dict: not the module that we know


def _detach(loader: Any) -> None:
    """Give a loader its class's own exec_module back; it may have been done through a proxy of the loader already."""
    try:  # noqa: SIM105 - contextlib is not loaded for this
        del loader.exec_module
    except AttributeError:
        pass


_announce = False


def _start(_: str = "torch") -> None:
    """Start the hook in a process where torch is loaded; whatever goes wrong must not reach the program."""
    try:
        if _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
        from gpugauge.hook import observer  # noqa: PLC0415 - imports torch, which is loaded only now

        observer.install(announce=_announce)
    except Exception:
        pass


_finder = Finder(("torch",), _start)


def switched_off() -> bool:
    """Tell whether the environment switches the hook off."""
    return os.environ.get(SWITCH, "1").strip().lower() in {"0", "false", "no", "off"}


def arm(announce: bool = False) -> None:
    """Start the hook when the program imports torch, or now if it has; `announce` opens the session without waiting
    for the first step or batch. Safe to call again.
    """
    global _announce  # noqa: PLW0603 - there is one hook in a process
    if switched_off():
        return
    _announce = _announce or announce
    if "torch" in sys.modules:
        _start()
    elif _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
