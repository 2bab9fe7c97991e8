"""Metric rows of the ranks of distributed trainings: their collectives, and where they are without progress."""

from __future__ import annotations

from collections.abc import Callable

from gpugauge.metric import Metric, Table
from gpugauge.node import training
from gpugauge.sessions.session import Session
from gpugauge.wire import messages as wire

_process = Table[Session]("process")
_GROUP = ("group", "description", "size")


def _groups(figure: Callable[[wire.Group], int]) -> Callable[[Session], dict[tuple[str, ...], int] | None]:
    return lambda session: {key: figure(group) for key, group in training.groups(session).items()} or None


def _in_flight(session: Session) -> dict[tuple[str, ...], float] | None:
    return dict(training.in_flight(session).items()) or None


def _position(session: Session) -> dict[tuple[str, ...], int] | None:
    found = training.position(session)
    return {found: 1} if found else None


COLLECTIVES: tuple[Metric, ...] = (
    _process.counter(
        "torch_collectives_enqueued_total",
        "Collectives that a rank has enqueued in a process group, by name, description and number of ranks of it; "
        "of the 8 groups with the most. Absent where the flight recorder of torch is off.",
        _groups(lambda group: group.enqueued),
        *_GROUP,
        source="torch._C._distributed_c10d: flight recorder",
    ),
    _process.counter(
        "torch_collectives_completed_total",
        "Those of torch_collectives_enqueued_total that have completed.",
        _groups(lambda group: group.completed),
        *_GROUP,
        source="torch._C._distributed_c10d: flight recorder",
    ),
    _process.gauge(
        "torch_collective_in_flight_seconds",
        "Time for which a collective of the group has not completed, of a rank without progress; read every 10 s.",
        _in_flight,
        *_GROUP,
    ),
    RANK_POSITION := _process.gauge(
        "training_rank_position",
        "Where a rank of a distributed training is that made no step, took no batch and changed no phase for 10 s: "
        "waiting (for other ranks), elsewhere, or silent (it does not answer), and the function of torch in which it "
        "waits. Always 1; absent while there is progress.",
        _position,
        *("position", "function"),
    ),
)
"""Exported while the process is connected."""
