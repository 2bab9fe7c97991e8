"""Table of the checks, and their execution in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpugauge.doctor import condition, machine, process, pytorch
from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Finding, failure, ok, skipped, warning
from gpugauge.doctor.gpus import computing
from gpugauge.status.words import digits, factor
from gpugauge.verdict.shares import LANE_BYTES_PER_SECOND

_BUSY_PERCENT = 10
_TENSOR_CORE_CAPABILITY = (7, 0)
_MIN_HALF_PRECISION_GAIN = 1.2  # rate of 16-bit types relative to 32-bit, with tensor cores
_MIN_LINK_RATIO = 0.5
_MIN_STEP_GAIN = 2.0


def obstacle(case: Case) -> str:
    """Return why nothing is measured, or ""."""
    if not case.options.timed:
        return "switched off (--no-timed)"
    if case.options.pid is not None:
        return "not available with a process"
    if case.simulated:
        return "the GPUs are simulated"
    facts = case.torch.facts
    if not (facts.get("available") or facts.get("mps_available")):
        return "torch has no usable GPU"
    device = case.device_of_torch()
    candidates = [device] if device else case.driver.up
    busy = [
        d.reading.index for d in candidates if computing(d) or (d.reading.utilization_percent or 0) >= _BUSY_PERCENT
    ]
    if busy and not case.options.force:
        return f"GPU {busy[0]} is in use"
    return ""


def remedy(case: Case) -> str:
    """Return what to do for what is not measured, or ""."""
    reason = obstacle(case)
    if "in use" in reason:
        return "measure when it is free; or now, which slows the other process down: gpugauge doctor --force"
    return "measure as well: gpugauge doctor" if "--no-timed" in reason else ""


def matrix_product(case: Case) -> Finding:
    """Check the rate of matrix multiplication in each dtype."""
    title = "Matrix product"
    rates = case.timings.facts.get("matmul")
    if not rates:
        return _unmeasured(case, title, "matmul")
    found = ", ".join(f"{name} {digits(rate / 1e12, 3)}" for name, rate in rates.items()) + " TFLOP/s"
    full, half = rates.get("float32"), max(rates.get("float16", 0.0), rates.get("bfloat16", 0.0))
    capability = (case.torch.facts.get("devices") or [{}])[0].get("capability")
    has_tensor_cores = case.build == "cuda" and capability is not None and tuple(capability) >= _TENSOR_CORE_CAPABILITY
    if has_tensor_cores and full and half < _MIN_HALF_PRECISION_GAIN * full:
        advice = (
            "16-bit types should be much faster on this GPU: check clocks and power limit above, and the version of "
            "torch"
        )
        return warning(title, found, advice)
    return ok(title, found)


def copies(case: Case) -> Finding:
    """Check the copy rate to the GPU, from pageable and from pinned memory."""
    title = "Copies to the GPU"
    rates = case.timings.facts.get("copies")
    if not rates:
        return _unmeasured(case, title, "copies")
    found = ", ".join(f"{name} {digits(rate / 1e9, 3)}" for name, rate in rates.items()) + " GB/s"
    link = _link(case)
    if link and rates.get("pinned", link) < _MIN_LINK_RATIO * link:
        return warning(
            title, f"{found}; the PCIe link can carry {digits(link / 1e9, 3)}", _SLOW_LINK_ADVICE, "transfer"
        )
    return ok(title, found)


_SLOW_LINK_ADVICE = "check the PCIe link above, other traffic on it, and the NUMA node on which the doctor ran"


def _link(case: Case) -> float | None:
    device = case.device_of_torch()
    if device is None or not device.reading.pcie_width:
        return None
    lane = LANE_BYTES_PER_SECOND.get(device.reading.pcie_generation_max or 0)
    return lane * device.reading.pcie_width if lane else None


def training_step(case: Case) -> Finding:
    """Compare a small training step on the GPU with the same step on the CPU."""
    title = "Training step"
    seconds = case.timings.facts.get("steps")
    if not seconds:
        return _unmeasured(case, title, "steps")
    gain = seconds["cpu"] / seconds["gpu"]
    cpu, gpu = (f"{digits(seconds[device] * 1e3, 3)} ms" for device in ("cpu", "gpu"))
    found = f"CPU {cpu}, GPU {gpu}: {factor(gain)} times as fast"
    if gain < _MIN_STEP_GAIN:
        return warning(title, found, "the gain is small even with 8 million parameters: check the findings above")
    return ok(title, found)


def _unmeasured(case: Case, title: str, key: str) -> Finding:
    facts: Any = case.timings.facts
    error = facts.get(f"{key}_error") or (case.timings.ending and f"the Python {case.timings.ending}")
    return failure(title, error or "the measurement gave no result", "check the kernel log for Xid errors")


# Returns one finding, or one for each fault; at least one.
Check = Callable[[Case], "Finding | Sequence[Finding]"]


@dataclass(frozen=True, slots=True)
class Group:
    """Checks under one heading. If there is an obstacle, one line with it replaces all checks."""

    heading: str
    checks: tuple[Check, ...]
    title: str = ""  # of the line with the obstacle
    obstacle: Callable[[Case], str] = lambda _: ""
    remedy: Callable[[Case], str] = lambda _: ""  # of the obstacle

    def instead(self, case: Case) -> Finding:
        """Return the line with the obstacle; its text is "" if there is none."""
        return skipped(self.title, self.obstacle(case), self.remedy(case))


MACHINE = Group(
    "Machine",
    (machine.graphics_devices, machine.driver, machine.devices, machine.device_files),
    "Driver and modes",
    machine.of_daemon,
    machine.on_its_machine,
)
FAULTS = Group("Condition", (condition.health, condition.clocks, condition.pcie), "Faults", condition.unknown)
CONDITION = Group("Condition", (condition.modes, condition.values, condition.use), "Modes, use", condition.obstacle)
# The environment of a program that is started from this terminal.
HERE = Group("This terminal", (machine.container, machine.visible_devices))
PYTHON = Group("PyTorch", (pytorch.python, pytorch.installation))
PYTORCH = Group(
    "PyTorch",
    (pytorch.build, pytorch.versions, pytorch.availability, pytorch.architectures),
    "Build and devices",
    pytorch.obstacle,
)
SPEED = Group("Speed", (matrix_product, copies, training_step), "Timed checks", obstacle, remedy)
PROCESS = (
    Group("Process", (process.existence,)),
    Group("Process", (process.mapped_torch, process.open_devices), "Its torch and GPUs", process.not_visible),
    Group("Process", (process.daemon,)),
    Group(
        "Process",
        (process.state, process.parameters),
        "Verdict",
        process.not_reported,
    ),
)
# Names of checks: what they find is a fault of a GPU, or is none, whatever its level.
_FAULTS = {check.__name__ for check in (*FAULTS.checks, condition.values)}
_NO_FAULTS = {check.__name__ for check in (process.existence, process.daemon, process.state, process.parameters)}


@dataclass(frozen=True, slots=True)
class Entry:
    """A finding with the heading of its group and the name of its check."""

    group: str
    check: str
    finding: Finding


def examine(case: Case) -> Iterator[Entry]:
    """Run the checks that the options select and yield each finding at once. Never raises."""
    for group in _groups(case):
        (instead,) = _guarded(case, group.instead, group.title)
        if instead.found:
            yield Entry(group.heading, "obstacle", instead)
            continue
        for check in group.checks:
            for finding in _guarded(case, check, check.__name__):
                yield Entry(group.heading, check.__name__, finding)


def exit_code(entries: Iterable[Entry], *, answered: bool = True, wasted: bool = False) -> int:
    """Return the exit code, as that of `gpugauge status`; `answered` is False if nothing is known of the process, and
    `wasted` whether the daemon has a problem.
    """
    found = [entry for entry in entries if entry.finding.severity]
    if any(e.check in _FAULTS or (e.finding.level == "failure" and e.check not in _NO_FAULTS) for e in found):
        return 1
    return 2 if not answered else 3 if found or wasted else 0


def _groups(case: Case) -> Iterator[Group]:
    """Yield the groups. A process has its own environment and torch, so those of the terminal are omitted then, as they
    are where the GPUs are on the machine of the daemon.
    """
    options = case.options
    # Where only the daemon has GPUs, its faults are all that is known of them.
    yield from (FAULTS, MACHINE) if case.by_daemon_alone else (MACHINE, FAULTS, CONDITION)
    if options.pid is None and options.python is None and case.by_daemon_alone:
        return
    if options.pid is None:
        yield HERE
    if options.pid is None or options.python is not None:
        yield from (PYTHON, PYTORCH)
    yield from (SPEED,) if options.pid is None else PROCESS


def _guarded(case: Case, check: Check, name: str) -> Sequence[Finding]:
    try:
        found = check(case)
    except Exception as error:  # noqa: BLE001 - a failing check is a finding; the others continue
        text = f"the check itself failed: {type(error).__name__}: {error}"
        found = warning(name.replace("_", " ").capitalize(), text, "report this, with the output of --json")
    return (found,) if isinstance(found, Finding) else found
