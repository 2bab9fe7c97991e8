"""The less frequent calls of a program: the result of watch(), and functions as phases."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from gpugauge.hook import arming
from gpugauge.hook.arming import current_observer
from gpugauge.wire import messages as wire


class Watch:
    """Whether this process is watched: false if the environment switches the hook off."""

    @property
    def watching(self) -> bool:
        """Whether the hook is switched on in this process."""
        observer = current_observer()
        return not arming.switched_off() and (observer is None or not observer.off)

    @property
    def connected(self) -> bool:
        """Whether the session with a daemon is open, or before torch is imported, whether a daemon listens."""
        observer = current_observer()
        return self.watching and (_daemon() is not None if observer is None else observer.client.connected)

    def __bool__(self) -> bool:
        return self.connected

    def __repr__(self) -> str:
        return f"<gpugauge.hook.Watch watching={self.watching} connected={self.connected}>"

    def print(self) -> None:
        """Print one line on stderr that states whether a daemon was found."""
        if not self.watching:
            line = f"the hook is switched off by {arming.SWITCH_VARIABLE}"
        elif self.connected:
            line = f"this process reports to the daemon at {_daemon() or wire.client_paths()[0]}"
        else:
            tried = " or ".join(wire.client_paths())
            if os.environ.get(wire.SOCKET_VARIABLE):
                remedy = (
                    f"correct {wire.SOCKET_VARIABLE}, or start a daemon there: gpugauge serve --hook.socket={tried}"
                )
            else:
                remedy = f"start one (gpugauge serve), or set {wire.SOCKET_VARIABLE} to the path of its socket"
            line = f"no daemon listens on {tried}: {remedy}. The hook tries again once a second"
        with contextlib.suppress(Exception):  # stderr may be closed
            sys.stderr.write(f"gpugauge: {line}\n")


def _daemon() -> str | None:
    """Return the socket that accepts a connection, None without one."""
    for path in wire.client_paths():
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as candidate:
            candidate.setblocking(False)  # a full queue refuses
            candidate.connect(path)
            return path
    return None


def within_phase(function: Any, phase: Callable[[], Any]) -> Any:
    """Return a wrapper of the function that runs inside a new `phase()`."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with phase():
                return await function(*args, **kwargs)

        return coroutine
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Any:
            return (yield from _resumed_within(function(*args, **kwargs), phase))

        return generator

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with phase():
            return function(*args, **kwargs)

    return wrapper


def _resumed_within(inner: Any, phase: Callable[[], Any]) -> Any:
    """Yield what a generator yields. Only the time in it is in the phase, not that of its caller in between."""
    resume, given = inner.send, None
    try:
        while True:
            with phase():
                value = resume(given)
            try:
                resume, given = inner.send, (yield value)
            except GeneratorExit:
                raise
            except BaseException as error:  # that the caller throws into the generator
                resume, given = inner.throw, error
    except StopIteration as end:
        return end.value
    finally:
        with phase():
            inner.close()
