"""A callback for the import of a module. Imports only modules that every interpreter loads by itself."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # the module typing is not loaded for this
if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from typing import Any


class Finder:
    """A finder for sys.meta_path that finds no module itself, and calls `executed` after one of `names` has run."""

    def __init__(self, names: Container[str], executed: Callable[[str], object]) -> None:
        self._names = names
        self._executed = executed
        self._asking: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of the other finders for the module; its loader then calls `executed`."""
        # Another finder can ask all others, too, and so this one again.
        if name not in self._names or name in self._asking:
            return None
        self._asking.add(name)
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find and finder is not self else None
                if spec is not None:
                    self._attach(name, spec.loader)
                    return spec
        finally:
            self._asking.discard(name)
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
            pass  # a namespace package or a loader without a dict: not the expected module


def _detach(loader: Any) -> None:
    """Restore the exec_module of the loader's class. A proxy of the loader may have done so already."""
    try:  # noqa: SIM105 - contextlib is not loaded for this
        del loader.exec_module
    except AttributeError:
        pass
