"""What a driver's version decides: which functions its library exports, and what its field ids mean."""

from __future__ import annotations

from fnmatch import fnmatchcase

# The branch that brought each function, as far as release notes and headers tell.
_SINCE = {
    "nvmlDeviceGetMemoryInfo_v2": 510,
    "nvmlDeviceGetNumGpuCores": 510,
    "nvmlGpm*": 520,
    "nvmlDeviceGetNumaNodeId": 530,
    "nvmlDeviceGetCurrentClocksEventReasons": 535,
    "nvmlDeviceGetSupportedClocksEventReasons": 535,
    "nvmlDeviceGetJpgUtilization": 535,
    "nvmlDeviceGetOfaUtilization": 535,
    "nvmlDeviceGetFanSpeedRPM": 565,
    "nvmlDeviceGetTemperatureV": 570,
}
# The last field id of each branch: later ones are unknown to it.
_LAST_FIELD = ((470, 160), (515, 169), (525, 172), (535, 200), (550, 234), (570, 268), (580, 274))
# The reasons whose counters got field ids of their own, in their order.
_COUNTED = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


class Generation:
    """A driver by its version, like 570.124.06."""

    def __init__(self, version: str) -> None:
        major, minor, *_ = [*(int(p) for p in version.split(".") if p.isdigit()), 0, 0]
        self._version = (major, minor)
        self._last_field = self._highest_field()
        self._first_counted = self._first_field_of_reasons()

    def lacks(self, function: str) -> bool:
        """Whether its library does not export a function yet."""
        return any(self._version[0] < since and fnmatchcase(function, name) for name, since in _SINCE.items())

    def knows_field(self, number: int) -> bool:
        """Whether it knows a field id at all."""
        return number <= self._last_field

    def _highest_field(self) -> int:
        if self._version >= (580, 82):
            return 307
        last = 0
        for major, highest in _LAST_FIELD:
            last = highest if self._version[0] >= major else last
        return last or _LAST_FIELD[0][1]

    def knows_ring(self, engine: str) -> bool:
        """Whether it keeps samples of an engine; those of the JPEG decoder and the optical flow came late."""
        return self._version[0] >= 535 or engine not in {"jpeg", "ofa"}

    def _first_field_of_reasons(self) -> int | None:
        if self._version >= (580, 82):
            return 269
        return 251 if (575, 0) <= self._version <= (580, 65) else None

    def throttle_reason(self, number: int) -> str | None:
        """The reason whose nanoseconds a field id counts, if the id means that in this driver."""
        first = self._first_counted
        return _COUNTED[number - first] if first is not None and first <= number < first + len(_COUNTED) else None
