"""Waits for the program to import torch. Imports nothing that an interpreter has not loaded by itself."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # the module typing is not loaded for this
if TYPE_CHECKING:
    from typing import Any

SWITCH = "GPUGAUGE_HOOK"


class TorchFinder:
    """A finder for sys.meta_path that finds nothing itself, and starts the hook once torch has been executed."""

    announce = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that the other finders give for torch, with its loader's end reported to us."""
        if name != "torch":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                self._attach(spec.loader)
                return spec
        return None

    def _attach(self, loader: Any) -> None:
        try:
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                _detach(loader)
                execute(module)
                self.start()

            loader.exec_module = exec_module
        except AttributeError:
            pass  # a namespace package or a loader without a dict: not the torch that we know

    def start(self) -> None:
        """Start the hook in a process where torch is loaded; whatever goes wrong must not reach the program."""
        try:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            from gpugauge.hook import observer  # noqa: PLC0415 - imports torch, which is loaded only now

            observer.install(announce=self.announce)
        except Exception:
            pass


def _detach(loader: Any) -> None:
    """Give a loader its class's own exec_module back; it may have been done through a proxy of the loader already."""
    try:  # noqa: SIM105 - contextlib is not loaded for this
        del loader.exec_module
    except AttributeError:
        pass


_finder = TorchFinder()


def switched_off() -> bool:
    """Tell whether the environment switches the hook off."""
    return os.environ.get(SWITCH, "1").strip().lower() in {"0", "false", "no", "off"}


def arm(announce: bool = False) -> None:
    """Start the hook when the program imports torch, or now if it has; `announce` opens the session without waiting
    for the first step or batch. Safe to call again.
    """
    if switched_off():
        return
    _finder.announce = _finder.announce or announce
    if "torch" in sys.modules:
        _finder.start()
    elif _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
