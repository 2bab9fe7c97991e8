"""The MIG devices of a GPU: their identity, memory, and the performance counters of their GPU instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpugauge.driver.codes import IMPLAUSIBLE, INVALID_ARGUMENT, NOT_FOUND, SUCCESS, UNSUPPORTED, DriverError
from gpugauge.driver.nvidia.caller import Caller
from gpugauge.driver.nvidia.calls import memory
from gpugauge.driver.nvidia.gpm import Gpm
from gpugauge.driver.nvidia.plausible import BYTES, COUNT, MIG_DEVICES, NUMBER, TEXT

_PROFILING = ("sm_active_percent", "sm_occupancy_percent", "tensor_active_percent", "dram_active_percent")
_LACKS = {SUCCESS, INVALID_ARGUMENT, NOT_FOUND, *UNSUPPORTED}  # codes that are no failure of a value


class Mig:
    """The MIG devices of a GPU. Call `free` before the library is shut down."""

    def __init__(self, call: Caller, handle: Any) -> None:
        self._call, self._handle = call, handle
        self._gpms: dict[int, Gpm] = {}
        self._profiling = True
        self.enabled: bool | None = None  # None: not known yet
        self.failures: dict[str, str] = {}
        """The code of the last value of a MIG device that could not be read, or cannot be true, in the last reading."""

    def read(self, now: float) -> list[dict[str, Any]]:
        """Return a mapping for each MIG device; an empty list while MIG is off. Raises DriverError."""
        self.failures = {}
        current, _pending = self._call("nvmlDeviceGetMigMode", self._handle)
        self.enabled = current == 1
        instances = self._instances() if self.enabled else []
        ids = {instance["gpu_instance_id"] for instance in instances}
        for gone in self._gpms.keys() - ids:
            self._gpms.pop(gone).free()
        values = {number: self._profile(number, now) for number in ids if number is not None}
        for instance in instances:
            instance.update(values.get(instance["gpu_instance_id"], {}))
        return instances

    def free(self) -> None:
        """Free the samples of all GPU instances."""
        for gpm in self._gpms.values():
            gpm.free()
        self._gpms.clear()

    def _instances(self) -> list[dict[str, Any]]:
        found = []
        most = self._call("nvmlDeviceGetMaxMigDeviceCount", self._handle)
        if not MIG_DEVICES(most):
            raise DriverError(IMPLAUSIBLE, "nvmlDeviceGetMaxMigDeviceCount")
        for index in range(most):
            try:
                handle = self._call("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, index)
            except DriverError as error:
                if error.code in {NOT_FOUND, INVALID_ARGUMENT}:
                    continue  # the numbers have gaps
                raise
            uuid = self._call("nvmlDeviceGetUUID", handle)  # without it, the device would seem to be gone
            if not TEXT(uuid):
                raise DriverError(IMPLAUSIBLE, "nvmlDeviceGetUUID")
            found.append({"uuid": uuid, **self._describe(handle)})
        return found

    def _describe(self, handle: Any) -> dict[str, Any]:
        name = self._ask("nvmlDeviceGetName", handle, TEXT) or ""
        attributes = self._ask("nvmlDeviceGetAttributes_v2", handle, lambda a: COUNT(a.multiprocessorCount))
        sizes = self._optional(lambda: memory(self._call, handle), lambda s: all(x is None or BYTES(x) for x in s))
        total, used, _, reserved = sizes or (None,) * 4
        return {
            "gpu_instance_id": self._ask("nvmlDeviceGetGpuInstanceId", handle, NUMBER),
            "compute_instance_id": self._ask("nvmlDeviceGetComputeInstanceId", handle, NUMBER),
            "profile": name.rpartition(" MIG ")[2] if " MIG " in name else None,  # NVIDIA A100-SXM4-80GB MIG 1g.10gb
            "sm_count": attributes.multiprocessorCount if attributes else None,
            "memory_total_bytes": total,
            "memory_used_bytes": used,
            "memory_reserved_bytes": reserved,
        }

    def _profile(self, gpu_instance: int, now: float) -> dict[str, float]:
        """Return the counters of a GPU instance, the latest ones within a second of the last reading."""
        if not self._profiling:
            return {}
        gpm = self._gpms.setdefault(gpu_instance, Gpm(self._call, self._handle, gpu_instance))
        try:
            gpm.read(now)
        except DriverError as error:
            self._profiling = error.code not in UNSUPPORTED or bool(gpm.proven)
            return {}
        for code in gpm.failures.values():
            self.failures["mig_values"] = code
        return {field: gpm.latest[field] for field in _PROFILING if field in gpm.latest}

    def _ask(self, function: str, handle: Any, check: Callable[[Any], bool]) -> Any:
        return self._optional(lambda: self._call(function, handle), check)

    def _optional(self, ask: Callable[[], Any], check: Callable[[Any], bool]) -> Any:
        try:
            value = ask()
            code = SUCCESS if check(value) else IMPLAUSIBLE
        except DriverError as error:
            value, code = None, error.code
        if code not in _LACKS:
            self.failures["mig_values"] = code
        return value if code == SUCCESS else None
