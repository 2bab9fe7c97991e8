"""What ails a simulated GPU, over time: errors, throttling, links, changes of its MIG layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# nvmlClocksEventReasons by name; those with a counter of nanoseconds have the same name there.
REASONS = {
    "idle": 0x1,
    "applications_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clocks": 0x100,
    "board_limit": 0x200,
    "reliability": 0x400,
}
_XID, _DOUBLE_BIT = 0x8, 0x2


class Health:
    """The `health` of a GPU in a scenario; what is not said is in order."""

    def __init__(self, plain: Mapping[str, Any] | None) -> None:
        plain = plain or {}
        self.remapped_rows: dict[str, int] = plain.get("remapped_rows") or {}
        self.retired_pages: dict[str, int] = plain.get("retired_pages") or {}
        self.recovery_action: int = plain.get("recovery_action") or 0
        self.pcie_generation: int | None = plain.get("pcie_generation")
        self.pcie_width: int | None = plain.get("pcie_width")
        self.pcie_replays: int = plain.get("pcie_replays") or 0
        self.pcie_errors: dict[str, int] = plain.get("pcie_errors") or {}
        self.nvlinks_down: list[int] = plain.get("nvlinks_down") or []
        self.nvlink_errors: dict[str, int] = plain.get("nvlink_errors") or {}
        self.counters_reset_at: float | None = plain.get("counters_reset_at")
        self._ecc: list[Mapping[str, Any]] = plain.get("ecc") or []
        self._xids: list[Mapping[str, Any]] = plain.get("xids") or []
        self._throttling: list[Mapping[str, Any]] = plain.get("throttling") or []

    def ecc_errors(self, kind: str, after: float, t: float) -> int:
        """How many corrected or uncorrected errors came between two seconds."""
        return sum(e["count"] for e in self._ecc if e["kind"] == kind and after <= e["at"] <= t)

    def throttled(self, t: float) -> int:
        """The reasons that hold at `t`, as NVML's bits."""
        bits = 0
        for spell in self._throttling:
            if spell["start"] <= t < _end(spell):
                bits |= REASONS[spell["reason"]]
        return bits

    def throttled_seconds(self, reason: str, t: float) -> float:
        """How long a reason has held until `t`."""
        spells = (spell for spell in self._throttling if spell["reason"] == reason)
        return float(sum(max(0.0, min(t, _end(spell)) - spell["start"]) for spell in spells))

    def events(self) -> Iterable[tuple[float, int, int]]:
        """What the driver reports by itself: second, NVML's type, data."""
        yield from ((xid["at"], _XID, xid["xid"]) for xid in self._xids)
        yield from ((e["at"], _DOUBLE_BIT, 0) for e in self._ecc if e["kind"] == "uncorrected")


def _end(spell: Mapping[str, Any]) -> float:
    end: float | None = spell["end"]
    return float("inf") if end is None else end
