"""Errors, throttling and link states of a simulated GPU over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpugauge.driver.codes import CLOCKS_EVENT_REASONS, ECC_DOUBLE_BIT_EVENT, XID_EVENT


class Health:
    """The `health` of a GPU in a scenario; a missing entry means no fault."""

    def __init__(self, plain: Mapping[str, Any] | None) -> None:
        plain = plain or {}
        self._since: float = float("-inf") if plain.get("since") is None else plain["since"]
        self._until: float = float("inf") if plain.get("until") is None else plain["until"]
        self._reset_at: float | None = plain.get("reset_at")
        self._remapped_rows: dict[str, int] = plain.get("remapped_rows") or {}
        self._retired_pages: dict[str, int] = plain.get("retired_pages") or {}
        self._recovery_action: int = plain.get("recovery_action") or 0
        self._pcie_generation: int | None = plain.get("pcie_generation")
        self._pcie_width: int | None = plain.get("pcie_width")
        self._temperature: int | None = plain.get("temperature")
        self.pcie_replays: int = plain.get("pcie_replays") or 0
        self.pcie_errors: dict[str, int] = plain.get("pcie_errors") or {}
        self._nvlinks_down: list[int] = plain.get("nvlinks_down") or []
        self._nvlink_outages: list[Mapping[str, Any]] = plain.get("nvlink_outages") or []
        self.nvlink_errors: dict[str, int] = plain.get("nvlink_errors") or {}
        restarts = plain.get("counters_reset_at")
        self.counters_reset_at: float | None = self._reset_at if restarts is None else restarts
        self._ecc: list[Mapping[str, Any]] = plain.get("ecc") or []
        self.xids: list[tuple[float, int]] = [(xid["at"], xid["xid"]) for xid in plain.get("xids") or []]
        self._throttling: list[Mapping[str, Any]] = plain.get("throttling") or []

    def counted(self, counter: str, t: float, kind: str | None = None) -> int:
        """Return a counter of the scenario, which counts from `since` on."""
        counts = getattr(self, counter)
        return (counts if kind is None else counts.get(kind, 0)) if t >= self._since else 0

    def remapped_rows(self, kind: str, t: float) -> int:
        """Return the number of remapped rows, or whether one is pending (until a reset) or has failed."""
        return self._kept(self._remapped_rows, kind, t, lasts={"correctable", "uncorrectable", "failure"})

    def retired_pages(self, kind: str, t: float) -> int:
        """Return the number of retired pages, or whether one is pending (until a reset)."""
        return self._kept(self._retired_pages, kind, t, lasts={"single_bit", "double_bit"})

    def _kept(self, counts: Mapping[str, int], kind: str, t: float, lasts: set[str]) -> int:
        holds = self._holds(t) if kind in lasts else self._holds(t) and not self._was_reset(t)
        return int(counts.get(kind, 0)) if holds else 0

    def recovery_action(self, t: float) -> int:
        """Return the number of the recovery action, which is none after a reset."""
        return self._recovery_action if self._holds(t) and not self._was_reset(t) else 0

    def pcie(self, t: float) -> tuple[int | None, int | None]:
        """Return generation and width of the PCIe link; None for that of the model."""
        return (self._pcie_generation, self._pcie_width) if self._holds(t) else (None, None)

    def temperature(self, t: float) -> int | None:
        """Return degrees Celsius, None for those that follow from the work."""
        return self._temperature if self._holds(t) else None

    def _holds(self, t: float) -> bool:
        return self._since <= t < self._until

    def _was_reset(self, t: float) -> bool:
        return self._reset_at is not None and t >= self._reset_at

    def ecc_errors(self, kind: str, after: float, t: float) -> int:
        """Return the number of corrected or uncorrected errors between two seconds."""
        return sum(e["count"] for e in self._ecc if e["kind"] == kind and after <= e["at"] <= t)

    def throttled(self, t: float) -> int:
        """Return the clocks event reasons at `t` as a bit mask."""
        bits = 0
        for spell in self._throttling:
            if spell["start"] <= t < _end(spell):
                bits |= CLOCKS_EVENT_REASONS[spell["reason"]]
        return bits

    def throttled_seconds(self, reason: str, t: float) -> float:
        """Return the seconds until `t` in which a reason was active."""
        spells = (spell for spell in self._throttling if spell["reason"] == reason)
        return float(sum(max(0.0, min(t, _end(spell)) - spell["start"]) for spell in spells))

    def nvlink_down(self, link: int, t: float) -> bool:
        """Return whether an NVLink is down at `t`."""
        return link in self._nvlinks_down or any(True for _ in self._outages(link, t))

    def nvlink_silent(self, link: int, t: float) -> bool:
        """Return whether the driver has no values of an NVLink that is down at `t`."""
        return any(outage["silent"] for outage in self._outages(link, t))

    def _outages(self, link: int, t: float) -> Iterable[Mapping[str, Any]]:
        return (o for o in self._nvlink_outages if o["link"] == link and o["start"] <= t < _end(o))

    def events(self) -> Iterable[tuple[float, int, int]]:
        """Return the driver events: second, type, data."""
        yield from ((at, XID_EVENT, xid) for at, xid in self.xids)
        yield from ((e["at"], ECC_DOUBLE_BIT_EVENT, 0) for e in self._ecc if e["kind"] == "uncorrected")


def _end(spell: Mapping[str, Any]) -> float:
    end: float | None = spell["end"]
    return float("inf") if end is None else end
