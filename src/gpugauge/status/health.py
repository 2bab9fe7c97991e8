"""What is wrong with a GPU that answers: errors of its memory, a required recovery, lowered clocks, Xid errors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

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
_MAX_PIDS = 8  # in an advice
# Of the 64 that a GPU can retire. https://docs.nvidia.com/deploy/dynamic-page-retirement
_MANY_RETIRED_PAGES = 60
# By the reason of `gpu_clocks_event_active`. A power cap is the normal state of a busy GPU, and no fault.
_SLOWDOWNS = {
    "hw_slowdown": "hardware slowdown",
    "sw_thermal_slowdown": "thermal slowdown (software)",
    "hw_thermal_slowdown": "thermal slowdown (hardware)",
    "hw_power_brake_slowdown": "power brake",
}

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
class MemoryHealth:
    """The figures of the driver about the memory of one GPU; an unknown one is as if there were no error."""

    recovery_action: str = "none"
    remapping_failed: bool = False
    remapping_pending: bool = False
    retired_pages: float = 0
    retirement_pending: bool = False
    uncorrected: float = 0  # errors since the driver was loaded


def ailments(health: MemoryHealth, index: object, pids: Sequence[int] = ()) -> Iterator[Ailment]:
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
    if health.retired_pages >= _MANY_RETIRED_PAGES:
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


def xid_advice(xid_class: str, index: object) -> str:
    """Return what to do about an unrepaired Xid error on the GPU with an index, "" if nothing."""
    return _XID_ADVICE.get(xid_class, "").format(index=index)


def slowdowns(active: Collection[str]) -> list[str]:
    """Return the reasons in words that lower the clocks because something is wrong."""
    return [words for reason, words in _SLOWDOWNS.items() if reason in active]
