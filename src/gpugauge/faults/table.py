"""The faults of GPUs: a row for each alert about a GPU, and what is wrong with a GPU that answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["info", "warning", "critical"]
Action = Literal["", "reset", "drain"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault by the name of its alert, which is that of its section in docs/runbook.md. `word` is the state of the GPU
    in at most 14 characters; `action` is what a router of alerts does.
    """

    name: str
    severity: Severity
    word: str = "errors"
    action: Action = ""


_ROWS = (
    Fault("GpuLost", "critical", "down", "drain"),
    Fault("GpuNeedsReset", "warning", action="reset"),
    Fault("GpuRowRemapFailed", "warning", action="drain"),
    Fault("GpuUncorrectedEcc", "warning", action="reset"),
    Fault("GpuNvlinkErrors", "warning", "NVLink errors"),
    Fault("GpuPcieDegraded", "warning", "narrow link"),
    Fault("GpuHot", "warning", "hot"),
    Fault("GpuThrottled", "warning", "clocks lowered"),
    Fault("GpuXidApplication", "info"),
    Fault("GpuXidReset", "warning", action="reset"),
    Fault("GpuXidWorkflow", "warning"),
    Fault("GpuXidNode", "critical", action="drain"),
    Fault("GpuXidOther", "info"),
)
FAULTS = {fault.name: fault for fault in _ROWS}

NEAR_SLOWDOWN_CELSIUS = 5
"""A GPU is hot from so much below the temperature at which it lowers its clocks."""
UNDER_LOAD = 0.2
"""The share of the time in which a kernel runs, from which a GPU is under load. Some use fewer lanes below it."""
SLOWED_SHARE = 0.2
"""The share of the time in which clocks are lowered, from which the alert fires."""
NVLINK_NEVER = ("replay", "recovery", "recovery_failed", "ecc_data", "malformed_packet", "buffer_overrun")
"""Errors that should not occur: NVIDIA's DCGM reports the first replay and the first recovery as a failure."""
NVLINK_CORRECTED, NVLINK_PER_SECOND = ("crc_flit", "crc_data", "receive"), 100
"""Errors that the link corrects, and their number per second from which DCGM reports a failure."""
MANY_RETIRED_PAGES = 60
"""Of the 64 that a GPU before Ampere can retire. https://docs.nvidia.com/deploy/dynamic-page-retirement"""
_COOLING = "the cooling (fans, air flow, dust)"
# A power cap is the normal state of a busy GPU, and no fault.
SLOWDOWNS = {
    "hw_thermal_slowdown": ("thermal slowdown (hardware)", _COOLING),
    "sw_thermal_slowdown": ("thermal slowdown (software)", _COOLING),
    "hw_power_brake_slowdown": ("power brake", "the power supply, which asks the GPU to slow down"),
    "hw_slowdown": ("hardware slowdown", "cooling and power supply"),
}
"""By the reason of `gpu_clocks_event_active`: why clocks are lowered, and what to check."""
# A reset fails while a program has the GPU open, and gpugauge is one.
_RESET = "release the driver (gpugauge release --for 10m), then nvidia-smi --gpu-reset -i {index}"
# By the action of `gpu_recovery_action` (RECOVERY_ACTIONS in driver/codes.py): what is required, and
# the advice for the GPU with an index; `pids` is how to end the programs on it.
RECOVERY = {
    "gpu_reset": ("a reset of the GPU", f"end the programs that use it{{pids}}, {_RESET}"),
    "node_reboot": ("a reboot of the node", "end the programs on the node, and reboot it"),
    "drain_p2p": ("that peer-to-peer traffic is drained", "end the programs that use this GPU and its NVLink peers"),
    "drain_and_reset": (
        "that it is drained and reset",
        f"end the programs that use it and its peers{{pids}}, {_RESET}",
    ),
    "recover_imex_domain": (
        "a recovery of the IMEX domain",
        "end the job on all nodes of the IMEX domain, and restart nvidia-imex there",
    ),
    "bus_reset": (
        "a reset of its PCI bus",
        "end the programs on the node, and reset the bus of the GPU, or reboot the node",
    ),
    "system_reboot": (
        "a reboot of the system",
        "end the programs on the node, and restart the whole system, with its power",
    ),
}
_REPLACE = "take the GPU out of use, confirm with NVIDIA's field diagnostics, and have it replaced"
_LINK = "check the link and the GPU at its other end, reset both; if it occurs again, have the parts replaced"
_COOL = "check fans, air flow, inlet temperature and coolant"
_MAX_PIDS = 8  # in an advice
# What an administrator does about an Xid error that is not repaired, by its class; nothing for the other classes.
_XID_ADVICE = {
    "reset": "end the programs that use the GPU, and reset it (nvidia-smi --gpu-reset -i {index}), or reboot the node",
    "workflow": "follow the workflow for this code in NVIDIA's Xid catalogue",
    "node": "inspect the machine: the slot, the power and the firmware of the GPU",
}


@dataclass(frozen=True, slots=True)
class Ailment:
    """`grave`: the GPU is not usable until something is done. `runbook` is the section of docs/runbook.md."""

    grave: bool
    text: str
    advice: str
    runbook: str


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """The figures of the driver about one GPU; an unknown one is as if there were no error."""

    recovery_action: str = "none"
    remapping_failed: bool = False
    remapping_pending: bool = False
    retired_pages: float = 0
    retirement_pending: bool = False
    uncorrected: float = 0  # errors since the driver was loaded
    nvlink_errors: Mapping[str, float] = field(default_factory=dict)  # by kind, since the driver was loaded
    nvlink_corrected: float | None = None  # of one kind of NVLINK_CORRECTED per second
    temperature: float | None = None
    slowdown_temperature: float | None = None  # at which it lowers its clocks


def ailments(health: GpuHealth, index: object, pids: Sequence[int] = ()) -> Iterator[Ailment]:
    """Yield each error of the GPU with an index, the gravest first. `pids` are the programs that use it."""
    end = f" (kill {' '.join(map(str, pids))})" if 0 < len(pids) <= _MAX_PIDS else ""
    reset = f"when no program uses it, reset it (nvidia-smi --gpu-reset -i {index}), or reboot the node"
    if (action := health.recovery_action) != "none":
        wanted, advice = RECOVERY.get(action, (action.replace("_", " "), "see NVIDIA's documentation"))
        yield Ailment(
            True, f"the driver requires {wanted} after an error", advice.format(index=index, pids=end), "GpuNeedsReset"
        )
    if health.remapping_failed:
        yield Ailment(True, "the remapping of a faulty memory row failed", _REPLACE, "GpuRowRemapFailed")
    if health.retired_pages >= MANY_RETIRED_PAGES:
        yield Ailment(
            False, f"{health.retired_pages:.0f} of at most 64 memory pages are retired", _REPLACE, "GpuRowRemapFailed"
        )
    if health.remapping_pending:
        text = "a faulty memory row waits to be remapped"
        yield Ailment(False, text, f"programs on it are not affected; {reset}", "GpuNeedsReset")
    if health.retirement_pending:
        yield Ailment(False, "a faulty memory page waits to be retired", reset, "GpuNeedsReset")
    if count := health.uncorrected:
        text = f"{count:.0f} uncorrected memory error{'s' if count > 1 else ''} since the driver was loaded"
        advice = f"check the kernel log for Xid errors (dmesg | grep Xid); {reset}"
        yield Ailment(False, text, advice, "GpuUncorrectedEcc")
    if found := nvlink_words(health):
        yield Ailment(False, found, _LINK, "GpuNvlinkErrors")
    temperature, limit = health.temperature, health.slowdown_temperature
    if temperature is not None and limit is not None and temperature >= limit - NEAR_SLOWDOWN_CELSIUS:
        text = f"its temperature is {temperature:.0f} °C, at {limit:.0f} °C it lowers its clocks"
        yield Ailment(False, text, _COOL, "GpuHot")


def nvlink_words(health: GpuHealth) -> str:
    """Return which errors of its NVLinks are a fault of a GPU, "" if none is."""
    never = [(kind, health.nvlink_errors.get(kind) or 0) for kind in NVLINK_NEVER]
    if counted := [f"{count:.0f} {kind.replace('_', ' ')}" for kind, count in never if count > 0]:
        return f"NVLink errors since the driver was loaded: {', '.join(counted)}"
    rate = health.nvlink_corrected or 0.0
    return f"its NVLinks correct {rate:.0f} errors per second" if rate >= NVLINK_PER_SECOND else ""


def xid_advice(xid_class: str, index: object) -> str:
    """Return what to do about an unrepaired Xid error on the GPU with an index, "" if nothing."""
    return _XID_ADVICE.get(xid_class, "").format(index=index)


def slowdowns(active: Collection[str]) -> list[str]:
    """Return the reasons in words that lower the clocks because something is wrong."""
    return [words for reason, (words, _) in SLOWDOWNS.items() if reason in active]
