"""The models of the GPUs of a scenario, and the types of sizes, return codes, functions and throttle reasons."""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gpugauge.driver.nvidia.caller import CLOCKS_EVENT_REASONS, RETURN_CODES
from gpugauge.settings.yaml_model import hint
from gpugauge.simulator.device.instance import PROFILE, memory_of
from gpugauge.simulator.device.presets import MAX_NVLINKS, PRESETS, WITHOUT
from gpugauge.simulator.nvml.library import FUNCTIONS
from gpugauge.simulator.scenario.loadspec import AnyLoad, Seconds, StrictModel

_SIZE = re.compile(r"(\d{1,18}(?:\.\d+)?) ?(B|[KMG]B|[KMG]iB)")
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_CODES = {name: code for code, name in RETURN_CODES.items() if name}
_CODES["lib_rm_version_mismatch"] = _CODES["library_mismatch"]
_REASONS = tuple(name for name in CLOCKS_EVENT_REASONS if name != "gpu_idle")


def _size(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if not match:
        raise ValueError(f"{value} is not a size; write a number of bytes, or a size like 40GiB")
    return round(float(match[1]) * _UNITS[match[2]])


def _known(what: str, names: Collection[str]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in names:
            raise ValueError(f"unknown {what} {value}{hint(value, names)}")
        return value

    return AfterValidator(check)


def _code(value: object) -> object:
    if not isinstance(value, str):
        return value
    name = value.lower().removeprefix("nvml_error_")
    if name not in _CODES:
        raise ValueError(f"unknown NVML code {value}{hint(name, _CODES)}")
    return _CODES[name]


def _pattern(value: str) -> str:
    if not any(fnmatchcase(function, value) for function in FUNCTIONS):
        raise ValueError(f"unknown NVML function {value}{hint(value, FUNCTIONS)}")
    return value


Bytes = Annotated[int, BeforeValidator(_size), Field(ge=0, le=1 << 50)]
Code = Annotated[int, BeforeValidator(_code), Field(ge=1)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Share = Annotated[float, Field(ge=0, le=1)]
Reason = Annotated[str, _known("reason", _REASONS)]
Counts = Annotated[dict[str, Annotated[int, Field(ge=0)]], Field(default_factory=dict)]


class Ring(StrictModel):
    """The sample rings of a GPU. `clock_steps` are [second, seconds]; `dry_when_idle`: none without a process."""

    period: Seconds = 1 / 6
    capacity: Annotated[int, Field(ge=1, le=1000)] = 72
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.1
    dry_when_idle: bool = False
    clock_steps: Annotated[list[Annotated[list[float], Field(min_length=2, max_length=2)]], Field(default_factory=list)]


class EccErrors(StrictModel):
    """`count` errors at a second. Errors before second 0 are in the aggregate counters only."""

    at: float
    kind: Literal["corrected", "uncorrected"]
    count: Annotated[int, Field(ge=1)] = 1


class Xid(StrictModel):
    """An Xid error at a second, as NVML reports it. One before second 0 is in the kernel log only."""

    at: float
    xid: Annotated[int, Field(ge=1, le=999)]


class Throttling(StrictModel):
    """Lower clocks for a reason, from `start` to `end`."""

    reason: Reason
    start: float = 0.0
    end: float | None = None


class NvlinkOutage(StrictModel):
    """An NVLink that is down from `start` to `end`. Meanwhile its values are 0, or with `silent` not supported."""

    link: Annotated[int, Field(ge=0)]
    start: float = 0.0
    end: float | None = None
    silent: bool = False


class Health(StrictModel):
    """Errors and states of a GPU. Counters and states have the given values from the second `since` on, and states
    until `until`, when the GPU is repaired or replaced. At `counters_reset_at` the hardware counters start again. At
    `reset_at` the GPU is reset: in addition, no row or page is pending, and no recovery action is required.
    `temperature` replaces the temperature that follows from the work. `nvlink_error_links` share the NVLink errors.
    """

    since: float | None = None
    until: float | None = None
    reset_at: float | None = None

    ecc: Annotated[list[EccErrors], Field(default_factory=list)]
    xids: Annotated[list[Xid], Field(default_factory=list)]
    throttling: Annotated[list[Throttling], Field(default_factory=list)]
    remapped_rows: Annotated[
        dict[Literal["correctable", "uncorrectable", "pending", "failure"], Annotated[int, Field(ge=0)]],
        Field(default_factory=dict),
    ]
    retired_pages: Annotated[
        dict[Literal["single_bit", "double_bit", "pending"], Annotated[int, Field(ge=0)]], Field(default_factory=dict)
    ]
    recovery_action: Annotated[int, Field(ge=0, le=7)] = 0
    pcie_generation: Annotated[int, Field(ge=1, le=7)] | None = None
    pcie_width: Annotated[int, Field(ge=1, le=32)] | None = None
    temperature: Annotated[int, Field(ge=0, le=150)] | None = None
    pcie_replays: Annotated[int, Field(ge=0)] = 0
    pcie_errors: Counts
    nvlinks_down: Annotated[list[Annotated[int, Field(ge=0)]], Field(default_factory=list)]
    nvlink_outages: Annotated[list[NvlinkOutage], Field(default_factory=list)]
    nvlink_errors: Counts
    nvlink_error_links: Annotated[list[Annotated[int, Field(ge=0)]], Field(default_factory=lambda: [0], min_length=1)]
    counters_reset_at: float | None = None

    @model_validator(mode="after")
    def _check(self) -> Health:
        if self.counters_reset_at is not None and self.reset_at is not None:
            raise ValueError("a reset also restarts the counters: omit counters_reset_at")
        if self.until is not None and self.since is not None and self.until <= self.since:
            raise ValueError("until must come after since")
        return self


class MigDevice(StrictModel):
    """`count` MIG devices of a profile like 1g.10gb, which exist from `start` to `end`."""

    profile: str
    count: Annotated[int, Field(ge=1, le=7)] = 1
    start: float = 0.0
    end: float | None = None

    @model_validator(mode="after")
    def _check(self) -> MigDevice:
        if not PROFILE.fullmatch(self.profile):
            raise ValueError(f"{self.profile} is not a profile like 1g.10gb")
        return self


class Gpu(StrictModel):
    """`count` GPUs of a model. Other keys override the figures of the model; `load` is work without a process, `mig`
    the layout of a GPU with MIG enabled. The GPU is lost at the second `lost_at`, a new worker finds it from `back_at`
    on, and it is on the bus from `plugged_at` on. While it is lost it is not on the bus, unless it `stays_on_bus`. A
    worker that starts while the file `gone_while_exists` exists does not find it. Besides its `nvlinks`, the library
    answers for `nvlinks_absent` links that the GPU does not have, as if they were down. At the other end of all links
    is the GPU with the index `nvlink_peer`, or else an NVSwitch.
    """

    model: Annotated[str, _known("model", PRESETS)]
    count: Annotated[int, Field(ge=1, le=256)] = 1
    uuid: str | None = None
    name: str | None = None
    memory: Bytes | None = None
    memory_reserved: Bytes | None = None
    idle_watts: Annotated[float, Field(ge=0)] | None = None
    power_limit_watts: Annotated[float, Field(gt=0)] | None = None
    unsupported: Annotated[list[Pattern], Field(default_factory=list)]
    unsupported_fields: Annotated[list[int], Field(default_factory=list)]
    lacks: list[Annotated[str, _known("feature", WITHOUT)]] | None = None
    nvlinks: Annotated[int, Field(ge=0, le=MAX_NVLINKS)] | None = None
    nvlinks_absent: Annotated[int, Field(ge=0, le=MAX_NVLINKS)] = 0
    nvlink_peer: Annotated[int, Field(ge=0)] | None = None
    load: AnyLoad | None = None
    ring: Annotated[Ring, Field(default_factory=Ring)]
    health: Annotated[Health, Field(default_factory=Health)]
    mig: list[MigDevice] | None = None
    lost_at: float | None = None
    back_at: float | None = None
    plugged_at: float | None = None
    stays_on_bus: bool = False
    gone_while_exists: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Gpu:
        if self.uuid and self.count > 1:
            raise ValueError("a uuid belongs to one GPU, so count must be 1")
        if self.free_for_processes < 0:
            raise ValueError("memory_reserved is more than memory")
        if self.back_at is not None and (self.lost_at is None or self.back_at <= self.lost_at):
            raise ValueError("back_at must come after lost_at")
        slices = sum(int(device.profile[0]) * device.count for device in self.mig or () if device.start <= 0)
        if self.mig is not None and not PRESETS[self.model]["mig_slice_sms"]:
            raise ValueError(f"{self.model} has no MIG")
        if slices > 7:
            raise ValueError(f"the MIG devices have {slices} slices of 7")
        if self._figure("idle_watts") >= self._figure("power_limit_watts"):
            raise ValueError("idle_watts must be less than power_limit_watts")
        return self

    def _figure(self, name: str) -> float:
        given = getattr(self, name)
        return float(PRESETS[self.model][name] if given is None else given)

    @property
    def free_for_processes(self) -> int:
        """Bytes that processes on one of the GPUs can hold."""
        return int(self._figure("memory") - self._figure("memory_reserved"))

    @property
    def capacities(self) -> dict[int | None, int]:
        """Bytes for processes by MIG device; the key is None for a GPU without MIG."""
        if self.mig is None:
            return {None: self.free_for_processes}
        layout = [device for device in self.mig for _ in range(device.count)]
        return {i: memory_of(device.profile) for i, device in enumerate(layout)}

    @property
    def parts(self) -> str:
        """The rest of a sentence about the possible values of `instance`."""
        if self.mig is None:
            return "has no MIG devices"
        return f"has MIG, so that instance must be one of: {', '.join(map(str, self.capacities)) or 'none'}"
