"""Faults of the simulated library, and errors, throttling and link states of a simulated GPU over time."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn


class Health:
    """The `health` of a GPU in a scenario."""

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self._plain = plain
        self._since: float = float("-inf") if plain["since"] is None else plain["since"]
        self._until: float = float("inf") if plain["until"] is None else plain["until"]
        self._reset_at: float = float("inf") if plain["reset_at"] is None else plain["reset_at"]
        restarts = plain["counters_reset_at"]
        self.counters_reset_at: float | None = plain["reset_at"] if restarts is None else restarts
        self.xids: list[tuple[float, int]] = [(xid["at"], xid["xid"]) for xid in plain["xids"]]

    def counted(self, counter: str, t: float, kind: str | None = None) -> int:
        """Return a counter of the scenario, which counts from `since` on."""
        counts = self._plain[counter]
        return (counts if kind is None else counts.get(kind, 0)) if t >= self._since else 0

    def rows(self, counts: str, kind: str, t: float) -> int:
        """Return a number of `remapped_rows` or `retired_pages`, or whether one is pending (until a reset)."""
        holds = self._holds(t) and (kind != "pending" or t < self._reset_at)
        return int(self._plain[counts].get(kind, 0)) if holds else 0

    def recovery_action(self, t: float) -> int:
        """Return the number of the recovery action, which is none after a reset."""
        return int(self._plain["recovery_action"]) if self._holds(t) and t < self._reset_at else 0

    def pcie(self, t: float) -> tuple[int | None, int | None]:
        """Return generation and width of the PCIe link; None for that of the model."""
        return (self._plain["pcie_generation"], self._plain["pcie_width"]) if self._holds(t) else (None, None)

    def temperature(self, t: float) -> int | None:
        """Return degrees Celsius, None for those that follow from the work."""
        given: int | None = self._plain["temperature"]
        return given if self._holds(t) else None

    def _holds(self, t: float) -> bool:
        return self._since <= t < self._until

    def ecc_errors(self, kind: str, after: float, t: float) -> int:
        """Return the number of corrected or uncorrected errors between two seconds."""
        return sum(e["count"] for e in self._plain["ecc"] if e["kind"] == kind and after <= e["at"] <= t)

    def throttled(self, t: float) -> set[str]:
        """Return the clocks event reasons at `t`."""
        return {spell["reason"] for spell in self._plain["throttling"] if spell["start"] <= t < _end(spell)}

    def throttled_seconds(self, reason: str, t: float) -> float:
        """Return the seconds until `t` in which a reason was active."""
        spells = (spell for spell in self._plain["throttling"] if spell["reason"] == reason)
        return float(sum(max(0.0, min(t, _end(spell)) - spell["start"]) for spell in spells))

    def nvlink_down(self, link: int, t: float) -> bool:
        """Return whether an NVLink is down at `t`."""
        return link in self._plain["nvlinks_down"] or any(self._outages(link, t))

    def nvlink_silent(self, link: int, t: float) -> bool:
        """Return whether the driver has no values of an NVLink that is down at `t`."""
        return any(outage["silent"] for outage in self._outages(link, t))

    def of_link(self, errors: int, link: int) -> int:
        """Return the share of a link in NVLink errors of a GPU; the first link with errors has what is left over."""
        links = self._plain["nvlink_error_links"]
        share, rest = divmod(errors, len(links))
        return share + rest * (link == links[0]) if link in links else 0

    def _outages(self, link: int, t: float) -> Iterable[Mapping[str, Any]]:
        return (o for o in self._plain["nvlink_outages"] if o["link"] == link and o["start"] <= t < _end(o))

    def events(self) -> Iterable[tuple[float, str, int]]:
        """Return the driver events: second, type, data."""
        yield from ((at, "xid", xid) for at, xid in self.xids)
        yield from ((e["at"], "ecc_double_bit", 0) for e in self._plain["ecc"] if e["kind"] == "uncorrected")


def _end(spell: Mapping[str, Any]) -> float:
    end: float | None = spell["end"]
    return float("inf") if end is None else end


class Fault:
    """A fault of the scenario (scenario/model.py), with the number of times that are left in this process."""

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self._plain = plain
        self._left: float = float("inf") if plain["times"] is None else plain["times"]
        self._matched = 0
        self._leaked: list[bytes] = []
        self.value: int | None = plain["value"]
        self.member: str | None = plain["member"]

    def concerns(self, function: str) -> bool:
        """Return whether the fault can apply to a function."""
        pattern = self._plain["call"]
        return pattern is None or fnmatchcase(function, pattern)

    def due(self, t: float, index: int | None, uuid: str | None) -> bool:
        """Return whether the fault applies to a call at `t`, and count it."""
        plain = self._plain
        if t < plain["start"] or (plain["end"] is not None and t >= plain["end"]) or self._left <= 0:
            return False
        if plain["call"] is None and index is None:  # not a call about a GPU
            return False
        if plain["gpu"] is not None and plain["gpu"] not in (index, uuid):
            return False
        if plain["while_exists"] is not None and not os.path.lexists(plain["while_exists"]):
            return False
        self._matched += 1
        if self._matched % plain["every"]:
            return False
        self._left -= 1
        return True

    def apply(self) -> int | None:
        """Apply the effect; return the return code of the call, None if the call proceeds."""
        plain = self._plain
        if plain["delay"] is not None:
            time.sleep(plain["delay"])
        if plain["hang"]:
            _hang()
        if plain["stat"] is not None:
            Path(plain["stat"]).stat()
        if plain["leak"]:
            self._leaked.append(b"\1" * plain["leak"])
        if plain["crash"]:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.kill(os.getpid(), signal.SIGSEGV)
        code: int | None = plain["code"]
        return code


def _hang() -> NoReturn:
    """Never return, whatever signal comes but SIGKILL; the process ends together with its parent."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def spoil(arguments: Sequence[Any], value: int, member: str | None = None) -> None:
    """Write `value` into every number that a call has returned, and bytes that are not UTF-8 into every text; with
    `member`, only into that of structures. The length of a list stays: the binding allocates that much.
    """
    targets = [getattr(argument, "_obj", argument) for argument in arguments]
    is_list = any(isinstance(t, ctypes.Array) and issubclass(t._type_, ctypes.Structure) for t in targets)
    sizes_a_list = len(arguments) > 1 and any(argument is None for argument in arguments)
    for argument, target in zip(arguments, targets, strict=True):
        if isinstance(target, ctypes.Structure):
            _spoil_structure(target, value, member)
        elif isinstance(target, ctypes.Array) and issubclass(target._type_, ctypes.c_char):
            target.value = b"\xff" if member is None else target.value
        elif isinstance(target, ctypes.Array) and not issubclass(target._type_, ctypes.Structure):
            target[:] = [value if member is None else item for item in target]
        elif isinstance(target, ctypes.Array):
            for item in target:
                _spoil_structure(item, value, member)
        elif target is not argument and not (is_list or sizes_a_list or member) and hasattr(target, "value"):
            target.value = value  # pointers have none, and stay: an invalid handle would crash the caller


def _spoil_structure(structure: ctypes.Structure, value: int, member: str | None) -> None:
    fields = {name: kind for name, kind, *_ in structure._fields_}
    if member is not None:
        if member in fields:
            setattr(structure, member, value)
        return
    union = next((name for name, kind in fields.items() if issubclass(kind, ctypes.Union)), None)
    if union:  # a field value or a sample: its type, code and time stay
        getattr(structure, union).ullVal = value
        return
    metrics = getattr(structure, "metrics", None)
    if metrics is not None:  # a request for GPM metrics: its inputs stay
        for metric in metrics:
            metric.value = value
        return
    for name, kind in fields.items():
        if issubclass(kind, ctypes.Array):
            setattr(structure, name, b"\xff")
        elif name != "version" and not hasattr(kind, "contents"):  # not a pointer
            setattr(structure, name, value)
