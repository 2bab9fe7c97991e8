"""Start of the hook when the program imports torch. Imports only modules that every interpreter loads by itself."""

from __future__ import annotations

import os
import sys

from gpugauge.hook import clock  # noqa: F401 - loaded before the program can replace the functions of time
from gpugauge.hook.finder import Finder

TYPE_CHECKING = False  # the module typing is not loaded for this
if TYPE_CHECKING:
    from gpugauge.hook.observer import Observer

SWITCH_VARIABLE = "GPUGAUGE_HOOK"
_announce = False


def _start(_: str = "torch") -> None:
    """Start the hook in a process where torch is loaded. No error reaches the program."""
    try:
        if _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
        from gpugauge.hook import install  # noqa: PLC0415 - imports torch, which is loaded only now

        install.install(announce=_announce)
    except Exception:
        pass


_finder = Finder(("torch",), _start)


def switched_off() -> bool:
    """Return whether the environment switches the hook off."""
    return os.environ.get(SWITCH_VARIABLE, "1").strip().lower() in {"0", "false", "no", "off"}


def current_observer() -> Observer | None:
    """Return the observer of this process, None in a process that is not watched."""
    module = sys.modules.get("gpugauge.hook.install")
    observer: Observer | None = getattr(module, "observer", None)
    return observer


def arm(announce: bool = False) -> None:
    """Start the hook when torch is imported, or now if it is. `announce` opens the session at once. Idempotent."""
    global _announce  # noqa: PLW0603 - there is one hook in a process
    if switched_off():
        return
    _announce = _announce or announce
    if "torch" in sys.modules:
        _start()
    elif _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
