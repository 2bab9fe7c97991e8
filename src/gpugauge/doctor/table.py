"""The table of checks, and how it is gone through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpugauge.doctor import condition, machine, process, pytorch, speed
from gpugauge.doctor.case import Case, Options
from gpugauge.doctor.finding import Finding, skipped, warning

Check = Callable[[Case], Finding]


def _always(_: Case) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Group:
    """Checks under one heading; when there is an obstacle, one line says so in the place of all of them."""

    heading: str
    checks: tuple[Check, ...]
    title: str = ""  # of that one line
    obstacle: Callable[[Case], str] = _always

    def instead(self, case: Case) -> Finding:
        """The line in the place of the checks; it tells nothing when there is no obstacle."""
        return skipped(self.title, self.obstacle(case))


MACHINE = Group(
    "Machine",
    (machine.graphics_devices, machine.driver, machine.devices, machine.device_files),
)
CONDITION = Group(
    "Condition",
    (condition.modes, condition.health, condition.clocks, condition.pcie, condition.use),
    "Modes, errors, use",
    condition.obstacle,
)
# What a program that is started from this terminal gets.
HERE = Group("This terminal", (machine.container, machine.visible_devices))
PYTHON = Group("PyTorch", (pytorch.python, pytorch.installation))
PYTORCH = Group(
    "PyTorch",
    (pytorch.build, pytorch.versions, pytorch.availability, pytorch.architectures),
    "Build and devices",
    pytorch.obstacle,
)
SPEED = Group("Speed", (speed.matrix_product, speed.copies, speed.training_step), "Timed checks", speed.obstacle)
PROCESS = (
    Group("Process", (process.existence,)),
    Group("Process", (process.mapped_torch, process.open_devices), "Its torch and GPUs", process.gone),
    Group("Process", (process.daemon,)),
    Group(
        "Process",
        (process.state, process.steps, process.data_wait, process.parameters, process.allocator),
        "Verdict and steps",
        process.unknown,
    ),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A finding in its place: the group's heading and the check's name."""

    group: str
    check: str
    finding: Finding


def examine(case: Case) -> Iterator[Entry]:
    """Go through the checks that the case asks for, one finding each as soon as it is there. Never raises."""
    for group in _groups(case.options):
        instead = _guarded(case, group.instead, group.title)
        if instead.found:
            yield Entry(group.heading, "obstacle", instead)
            continue
        for check in group.checks:
            yield Entry(group.heading, check.__name__, _guarded(case, check, check.__name__))


def _groups(options: Options) -> Iterator[Group]:
    """A process has an environment and a torch of its own: this terminal's are of no interest then."""
    yield from (MACHINE, CONDITION)
    if options.pid is None:
        yield HERE
    if options.pid is None or options.python is not None:
        yield from (PYTHON, PYTORCH)
    yield from (SPEED,) if options.pid is None else PROCESS


def _guarded(case: Case, check: Check, name: str) -> Finding:
    try:
        return check(case)
    except Exception as error:  # noqa: BLE001 - one check that fails is a finding, and the others go on
        found = f"the check itself failed: {type(error).__name__}: {error}"
        return warning(name.replace("_", " ").capitalize(), found, "report this, with the output of --json")
