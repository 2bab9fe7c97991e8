"""The functions that the library of a driver version exports, and the meaning of its field ids."""

from __future__ import annotations

from fnmatch import fnmatchcase

# The first driver branch with each function, according to release notes and headers.
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
# The last field id of each branch; it rejects later ones.
_LAST_FIELD = ((470, 160), (515, 169), (525, 172), (535, 200), (550, 234), (570, 268), (580, 274))
# The throttle reasons with field ids that depend on the driver, in the order of the ids.
_THROTTLE_REASONS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


class Generation:
    """A driver version like 570.124.06."""

    def __init__(self, version: str) -> None:
        major, minor, *_ = [*(int(p) for p in version.split(".") if p.isdigit()), 0, 0]
        self._version = (major, minor)
        newest = self._version >= (580, 82)
        known = [last for branch, last in _LAST_FIELD if major >= branch] or [_LAST_FIELD[0][1]]
        self._last_field = 307 if newest else known[-1]
        self._first_throttle_field = 251 if (575, 0) <= self._version <= (580, 65) else 269 if newest else None

    def lacks(self, function: str) -> bool:
        """Return whether the library does not export a function."""
        return any(self._version[0] < since and fnmatchcase(function, name) for name, since in _SINCE.items())

    def has_field(self, number: int) -> bool:
        """Return whether the driver accepts a field id."""
        return number <= self._last_field

    def has_ring(self, engine: str) -> bool:
        """Return whether the driver has a sample ring of an engine."""
        return self._version[0] >= 535 or engine not in {"jpeg", "ofa"}

    def throttle_reason(self, number: int) -> str | None:
        """Return the throttle reason that a field id counts in this driver, None for other ids."""
        first = self._first_throttle_field
        if first is None or not first <= number < first + len(_THROTTLE_REASONS):
            return None
        return _THROTTLE_REASONS[number - first]
