"""Errors, throttling and link states of a simulated GPU over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


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

    def _outages(self, link: int, t: float) -> Iterable[Mapping[str, Any]]:
        return (o for o in self._plain["nvlink_outages"] if o["link"] == link and o["start"] <= t < _end(o))

    def events(self) -> Iterable[tuple[float, str, int]]:
        """Return the driver events: second, type, data."""
        yield from ((at, "xid", xid) for at, xid in self.xids)
        yield from ((e["at"], "ecc_double_bit", 0) for e in self._plain["ecc"] if e["kind"] == "uncorrected")


def _end(spell: Mapping[str, Any]) -> float:
    end: float | None = spell["end"]
    return float("inf") if end is None else end
