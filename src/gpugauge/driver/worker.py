"""The worker process: the one owner of the driver. It reads what it is asked for and sends it raw.

`python -m gpugauge.driver.worker --fd N --bell M` answers requests on the socket N until the other end closes it:
`{"id", "op": "open", "simulate": null | {...}}`, `{"id", "op": "read", "index", "groups"}`, `{"id", "op": "close"}`.
A read of several cards has "indexes" and gets an answer for each, sent as soon as it is known, with ids from "id" on.
The eventfd M is rung once all that was asked is answered: who asked need not wake up for each answer.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from gpugauge.driver.codes import DriverError
from gpugauge.driver.frames import Inbox, frame
from gpugauge.driver.messages import message, reply
from gpugauge.driver.nvidia.nvml import Nvml

if TYPE_CHECKING:
    from gpugauge.driver.api import Reply

_INVALID_ARGUMENT = 2
_UNKNOWN = 999
# Bytes of answers that are worth waking up for before the last is known: no more must wait in the socket than it takes.
_MUCH = 1 << 16


class Service:
    """Answers one request at a time. Nothing that a request or the driver does raises. `clock` is a steady one, in
    seconds; a simulated driver lives by it too.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nvml = Nvml(clock)
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
            told |= {"failed": _UNKNOWN, "failed_call": f"{type(error).__name__}: {error}"}
        if request.get("calls", True) or "failed" in told:
            told["calls"] = self._nvml.take_calls()
        # The events of a read that failed too: they may say why.
        return message(**told, events=self._nvml.take_events(), received=round(self._clock(), 4))

    def close(self) -> None:
        """Let go of the driver, so that a card can be reset or the driver upgraded. Raises DriverError."""
        if self._open:
            self._open = False
            self._nvml.close()

    def _perform(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the answer."""
        match request:
            case {"op": "open", **options}:
                return {"values": {"driver": self._start(options.get("simulate"))}}
            case {"op": "read", "index": int(index), "groups": list(groups)}:
                values, errors = self._nvml.read(index, [group for group in groups if group != "samples"])
                if "samples" not in groups:
                    return {"values": values, "errors": errors}
                samples, sample_errors = self._nvml.samples(index)
                return {"values": values, "errors": errors | sample_errors, "samples": samples}
            case {"op": "close"}:
                self.close()
                return {}
        raise DriverError(_INVALID_ARGUMENT, f"request {request.get('op')!r}")

    def _start(self, simulation: dict[str, Any] | None) -> dict[str, Any]:
        if simulation is not None:
            # Only here: what a real node runs does not load the simulator.
            from gpugauge.simulator.nvml.install import install  # noqa: PLC0415  (needs pydantic)

            install(simulation, self._clock)
        self._nvml.open()
        self._open = True
        return self._nvml.facts()._replace(simulated=simulation is not None)._asdict()


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
            if unheard > _MUCH or single.get("op") == "close":
                ring()
                unheard = 0
        if request.get("op") == "close":
            return


def _singles(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a request asks for, one card at a time; the last answer tells what all the calls cost."""
    match request:
        case {"op": "read", "id": int(first), "indexes": list(indexes), "groups": groups}:
            last = first + len(indexes) - 1
            for number, index in enumerate(indexes, first):
                yield {"id": number, "op": "read", "index": index, "groups": groups, "calls": number == last}
        case _:
            yield request


def main(arguments: list[str]) -> int:
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
    service = Service()
    # What is there now stays, and what an answer makes goes with it: to look for cycles in it each time costs CPU.
    gc.freeze()
    gc.set_threshold(20_000, 5, 5)
    with channel, contextlib.suppress(DriverError):
        try:
            serve(channel, service, ring)
        finally:
            # A killed owner once froze a MIG card (dcgm-exporter#84): shut down on every way out.
            service.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
