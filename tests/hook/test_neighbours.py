"""The hook and the daemon of the minor version before understand each other, in both directions."""

import pytest

from gpugauge.wire import messages as wire
from tests.wire.test_messages import MESSAGES, SESSION

from . import wire_1_0 as older

FULL = wire.Snap(
    SESSION,
    9,
    1,
    wire.Progress(3, 0.25),
    devices=(wire.Device(0, "GPU-1", 10, name="NVIDIA X", capability="9.0"),),
    facts={"architectures": "sm_90 " * 30},
    step_source="tick",
    optimizer_state=(wire.Parameters("cpu", "float32", 1, 2, 8),),
    exposed_wait_seconds=0.5,
    local_work_seconds=1.5,
    compilations=1,
)


@pytest.mark.parametrize("message", [*MESSAGES, FULL], ids=lambda m: type(m).__name__)
def test_the_older_daemon_takes_what_it_knows(message: wire.Message) -> None:
    taken = older.decode(wire.encode(message))
    for name, value in vars(taken).items():
        assert getattr(message, name) == value or name in {"steps", "batches", "devices", "parameters"}
    if isinstance(taken, older.Snap) and isinstance(message, wire.Snap):
        assert [(d.index, d.uuid, d.allocated) for d in message.devices] == [
            (d.index, d.uuid, d.allocated) for d in taken.devices
        ]
        assert (message.steps and message.steps.count) == (taken.steps and taken.steps.count)


def test_the_older_hook_is_understood() -> None:
    sent = older.Snap(SESSION, 7, 5, older.Progress(3, 0.25), None, (), (older.Device(0, "GPU-1", 10),), 0)
    expected = wire.Snap(SESSION, 7, 5, wire.Progress(3, 0.25), devices=(wire.Device(0, "GPU-1", 10),), errors=0)
    assert expected == wire.decode(older.encode(sent))
    assert wire.Hello(SESSION, 0, 1, facts={"torch": "2.1"}) == wire.decode(
        older.encode(older.Hello(SESSION, 0, 1, facts={"torch": "2.1"}))
    )
