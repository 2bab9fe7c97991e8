"""The worker process: the one owner of the driver. It reads what it is asked for and sends it raw.

A vendor's worker module (driver/nvidia/worker.py) calls `main` with its backend. `--fd N --bell M`: it answers requests
on the socket N until the other end closes it: `{"id", "op": "open", ...}` with the backend's own options,
`{"id", "op": "read", "index", "groups"}`, `{"id", "op": "close"}`. A read of several GPUs has "indexes" and gets an
answer for each, sent as soon as it is known, with ids from "id" on. The eventfd M is rung once all requests are
answered: the parent need not wake up for each answer.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from gpugauge.driver.codes import INVALID_ARGUMENT, UNKNOWN, DriverError, DriverFacts, Group
from gpugauge.driver.frames import Inbox, frame
from gpugauge.driver.messages import message, reply

if TYPE_CHECKING:
    from gpugauge.driver.api import Reply

# Bytes of unread answers after which the bell is rung before the last answer: the socket must not fill.
_RING_BYTES = 1 << 16


class Backend(Protocol):
    """A vendor's library. Codes are those of `driver.codes`, which are NVML's; methods raise DriverError."""

    @property
    def open(self) -> Callable[..., None]:
        """A function that loads and initialises the library; its keywords are the backend's own options."""
        ...

    def facts(self) -> DriverFacts:
        """Return what the library tells about the driver as a whole."""
        ...

    def read(self, index: int, groups: Iterable[Group]) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
        """Return one GPU's values by group and field, and the codes of the fields that failed."""
        ...

    def samples(self, index: int) -> tuple[dict[str, Any], dict[str, int]]:
        """Return the samples since the last call, see `Reply.samples`, and the codes of the rings that failed."""
        ...

    def take_calls(self) -> dict[str, list[float]]:
        """Return and forget the cost of the calls, see `Reply.calls`."""
        ...

    def take_events(self) -> list[dict[str, Any]]:
        """Return and forget the events since the last call, see `Reply.events`."""
        ...

    def close(self) -> None:
        """Shut the library down."""
        ...


class Service:
    """Answers one request at a time. Nothing that a request or the driver does raises. `clock` returns monotonic
    seconds.
    """

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._backend = backend
        self._open = False

    def answer(self, request: dict[str, Any]) -> Reply:
        """Do what a request asks and return the answer, a failure included."""
        return reply(self.message(request))

    def message(self, request: dict[str, Any]) -> dict[str, Any]:
        """The same, as it is sent."""
        told: dict[str, Any] = {
            "id": request.get("id", -1),
            "op": str(request.get("op")),
            "index": request.get("index"),
        }
        try:
            told |= self._perform(request)
        except DriverError as error:
            told |= {"failed": error.code, "failed_call": error.call}
        except Exception as error:  # noqa: BLE001  (the parent logs it; a process that dies of it could not say why)
            told |= {"failed": UNKNOWN, "failed_call": f"{type(error).__name__}: {error}"}
        if request.get("calls", True) or "failed" in told:
            told["calls"] = self._backend.take_calls()
        # The events of a read that failed too: they may say why.
        return message(**told, events=self._backend.take_events(), received=round(self._clock(), 4))

    def close(self) -> None:
        """Let go of the driver, so that a GPU can be reset or the driver upgraded. Raises DriverError."""
        if self._open:
            self._open = False
            self._backend.close()

    def _perform(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the answer."""
        match request:
            case {"op": "open", **rest}:
                rest.pop("id", None)
                return {"values": {"driver": self._start(rest)}}
            case {"op": "read", "index": int(index), "groups": list(groups)}:
                values, errors = self._backend.read(index, [group for group in groups if group != "samples"])
                if "samples" not in groups:
                    return {"values": values, "errors": errors}
                samples, sample_errors = self._backend.samples(index)
                return {"values": values, "errors": errors | sample_errors, "samples": samples}
            case {"op": "close"}:
                self.close()
                return {}
        raise DriverError(INVALID_ARGUMENT, f"request {request.get('op')!r}")

    def _start(self, options: dict[str, Any]) -> dict[str, Any]:
        self._backend.open(**options)
        self._open = True
        return self._backend.facts()._asdict()


def serve(channel: socket.socket, service: Service, ring: Callable[[], None] = lambda: None) -> None:
    """Answer until told to close or until the other end is gone; `ring` when there is something worth waking up for."""
    inbox, unheard = Inbox(channel), 0
    while True:
        try:
            request = inbox.take()
            if request is None:
                if unheard:
                    ring()
                    unheard = 0
                inbox.fill()
                continue
        except (EOFError, OSError, ValueError, TypeError):  # closed, or not our parent's language
            return
        for single in _singles(request):
            answer = frame(service.message(single))
            try:
                channel.sendall(answer)
            except OSError:
                return
            unheard += len(answer)
            if unheard > _RING_BYTES or single.get("op") == "close":
                ring()
                unheard = 0
        if request.get("op") == "close":
            return


def _singles(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a request asks for, one GPU at a time; the last answer tells what all the calls cost."""
    match request:
        case {"op": "read", "id": int(first), "indexes": list(indexes), "groups": groups}:
            last = first + len(indexes) - 1
            for number, index in enumerate(indexes, first):
                yield {"id": number, "op": "read", "index": index, "groups": groups, "calls": number == last}
        case _:
            yield request


def main(arguments: list[str], backend: Backend) -> int:
    """Serve on the inherited socket; returns the exit status."""
    match arguments:
        case ["--fd", number, "--bell", bell] if number.isdigit() and bell.isdigit():
            channel = socket.socket(fileno=int(number))
            ring = partial(os.eventfd_write, int(bell), 1)
        case _:
            return 2
    # The terminal sends these to the parent too, and it is the parent that decides.
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    service = Service(backend)
    # What is there now stays, and what an answer makes goes with it: to look for cycles in it each time costs CPU.
    gc.freeze()
    gc.set_threshold(20_000, 5, 5)
    with channel, contextlib.suppress(DriverError):
        try:
            serve(channel, service, ring)
        finally:
            # A killed owner once froze a MIG GPU (dcgm-exporter#84): shut down on every way out.
            service.close()
    return 0
