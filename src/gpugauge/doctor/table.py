"""Table of the checks, and their execution in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpugauge.doctor import condition, machine, process, pytorch, reported, speed
from gpugauge.doctor.case import Case, Options
from gpugauge.doctor.finding import Finding, skipped, warning

# Returns one finding, or one for each fault; at least one.
Check = Callable[[Case], "Finding | Sequence[Finding]"]


def _no_obstacle(_: Case) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Group:
    """Checks under one heading. If there is an obstacle, one line with it replaces all checks."""

    heading: str
    checks: tuple[Check, ...]
    title: str = ""  # of the line with the obstacle
    obstacle: Callable[[Case], str] = _no_obstacle

    def instead(self, case: Case) -> Finding:
        """Return the line with the obstacle; its text is "" if there is none."""
        return skipped(self.title, self.obstacle(case))


MACHINE = Group(
    "Machine",
    (machine.graphics_devices, machine.driver, machine.devices, machine.device_files),
)
CONDITION = Group(
    "Condition",
    (condition.modes, condition.health, condition.values, condition.clocks, condition.pcie, condition.use),
    "Modes, errors, use",
    condition.obstacle,
)
# The environment of a program that is started from this terminal.
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
    Group("Process", (process.mapped_torch, process.open_devices), "Its torch and GPUs", process.not_visible),
    Group("Process", (reported.daemon,)),
    Group(
        "Process",
        (reported.state, reported.steps, reported.data_wait, reported.parameters, reported.allocator),
        "Verdict and steps",
        reported.not_reported,
    ),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A finding with the heading of its group and the name of its check."""

    group: str
    check: str
    finding: Finding


def examine(case: Case) -> Iterator[Entry]:
    """Run the checks that the options select and yield each finding at once. Never raises."""
    for group in _groups(case.options):
        (instead,) = _guarded(case, group.instead, group.title)
        if instead.found:
            yield Entry(group.heading, "obstacle", instead)
            continue
        for check in group.checks:
            for finding in _guarded(case, check, check.__name__):
                yield Entry(group.heading, check.__name__, finding)


def _groups(options: Options) -> Iterator[Group]:
    """Yield the groups. A process has its own environment and torch, so those of the terminal are omitted then."""
    yield from (MACHINE, CONDITION)
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
