"""GPM, the performance counters of a GPU (Hopper and newer): means between two samples of the counters."""

from __future__ import annotations

import math
import struct
from contextlib import suppress
from ctypes import byref
from typing import Any

from gpugauge.driver.codes import IMPLAUSIBLE, DriverError
from gpugauge.driver.nvidia.caller import Caller, code_name, put
from gpugauge.driver.nvidia.plausible import MIB_PER_SECOND, PERCENT, Check

# By field: the id of the metric in NVML, and the check of its value.
_METRICS: dict[str, tuple[int, Check]] = {
    "graphics_active_percent": (1, PERCENT),
    "sm_active_percent": (2, PERCENT),
    "sm_occupancy_percent": (3, PERCENT),
    "tensor_active_percent": (5, PERCENT),
    "dram_active_percent": (10, PERCENT),
    "fp64_active_percent": (11, PERCENT),
    "fp32_active_percent": (12, PERCENT),
    "fp16_active_percent": (13, PERCENT),
    "pcie_transmit_mib_per_second": (20, MIB_PER_SECOND),
    "pcie_receive_mib_per_second": (21, MIB_PER_SECOND),
    "nvlink_receive_mib_per_second": (60, MIB_PER_SECOND),
    "nvlink_transmit_mib_per_second": (61, MIB_PER_SECOND),
}
_HEADER = struct.Struct("IIPP")  # nvmlGpmMetricsGet_t: version, number of metrics, two samples; followed by the metrics
_METRIC = struct.Struct("IIdPPP")  # nvmlGpmMetric_t: id, code, value, texts
_REQUEST = _HEADER.pack(0, len(_METRICS), 0, 0) + b"".join(
    _METRIC.pack(number, 0, 0.0, 0, 0, 0) for number, _ in _METRICS.values()
)
FIELDS = ("profiling_seconds", *_METRICS)
# The smallest gap between two samples: a second, less the jitter of ticks. Below 0.1 s the values are not valid.
_MIN_GAP_SECONDS = 0.9


class Gpm:
    """The samples of a GPU, or of one of its GPU instances. Call `free` before the library is shut down."""

    def __init__(self, call: Caller, handle: Any, gpu_instance: int | None = None) -> None:
        self._call, self._handle, self._gpu_instance = call, handle, gpu_instance
        self._samples: list[Any] = []  # the latest one, and the one to fill next
        self._since: float | None = None
        self.latest: dict[str, float] = {}
        """The means of the last reading; empty after a failed one, until there are two samples again."""
        self.proven: set[str] = set()  # what has worked
        self.failures: dict[str, str] = {}
        """The codes of what has failed in the last reading although it has worked, or that cannot be true."""

    def read(self, now: float) -> dict[str, float] | None:
        """Return the means since the last reading, None without one or within 0.9 s. Raises DriverError."""
        since, self._since, self.failures = self._since, None, {}  # after a failed reading there is no start
        if since is not None and now - since < _MIN_GAP_SECONDS:
            self._since = since
            return None
        while len(self._samples) < 2:
            self._samples.append(self._call("nvmlGpmSampleAlloc"))
        self._samples.reverse()
        if self._gpu_instance is None:
            self._call("nvmlGpmSampleGet", self._handle, self._samples[0])
        else:
            self._call("nvmlGpmMigSampleGet", self._handle, self._gpu_instance, self._samples[0])
        if since is None:
            self.latest, self._since = {}, now
            return None
        self.latest = {"profiling_seconds": now - since, **self._metrics()}
        self._since = now
        return self.latest

    def free(self) -> None:
        """Free the samples; failures are ignored."""
        for sample in self._samples:
            with suppress(DriverError):
                self._call("nvmlGpmSampleFree", sample)
        self._samples, self._since = [], None

    def _metrics(self) -> dict[str, float]:
        function = "nvmlGpmMetricsGet"
        request = self._call.buffer("c_nvmlGpmMetricsGet_t", 1, function).array[0]
        data = memoryview(request).cast("B")
        data[: len(_REQUEST)] = _REQUEST
        put(request, "version", self._call.bound("NVML_GPM_METRICS_GET_VERSION", function))
        put(request, "sample1", self._samples[1])
        put(request, "sample2", self._samples[0])
        self._call.direct(function, byref(request))
        found = {}
        answers = _METRIC.iter_unpack(data[_HEADER.size : len(_REQUEST)])
        for (field, (_, check)), (_, code, value, *_) in zip(_METRICS.items(), answers, strict=True):
            if not code and check(value):
                found[field] = value
            elif field in self.proven if code else not math.isnan(value):  # which is no value
                self.failures[field] = code_name(code) if code else IMPLAUSIBLE
        self.proven |= found.keys()
        return found
