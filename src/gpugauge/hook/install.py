"""Installs the observer of this process, once: with torch, and with what the program imports beside it."""

from __future__ import annotations

import os

from gpugauge.hook import adapters, listeners
from gpugauge.hook.client import Client
from gpugauge.hook.counts.clock import CLOCKS
from gpugauge.hook.ends import Ends
from gpugauge.hook.observer import Observer
from gpugauge.hook.wrappers import be_unnoticed
from gpugauge.wire import messages as wire

observer: Observer | None = None


def install(announce: bool = False) -> None:
    """Install the hook in this process, once; `announce` opens the session now."""
    global observer  # noqa: PLW0603 - torch's hooks are global to the process, so is this
    if observer is None:
        be_unnoticed()
        observer = Observer(Client(wire.client_paths()))
        listeners.install(observer)
        adapters.install(observer)
        listeners.count_modes(observer)
        Ends(observer).install()
        if os.environ.get(wire.COUNT_FLOPS_VARIABLE) == "1":
            _count_flops(observer)
        # A child inherits the hooks, so they are not registered again. The connection belongs to the parent.
        os.register_at_fork(after_in_child=observer.reset)
    if announce:
        observer.publish(CLOCKS[0]())


def _count_flops(observer: Observer) -> None:
    try:
        from gpugauge.hook.counts.flopcount import StepCounter  # noqa: PLC0415 - loaded only for this

        observer.step_counter = StepCounter(observer)
    except Exception:
        observer.count_error()  # this version of torch has other modules
