"""Compatibility with the previous minor version, in both directions."""

import pytest

from gpugauge.wire import messages as wire
from gpugauge.wire.decoding import decode
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
def test_the_older_daemon_decodes_the_fields_of_its_version(message: wire.Message) -> None:
    decoded = older.decode(wire.encode(message))
    for name, value in vars(decoded).items():
        assert getattr(message, name) == value or name in {"steps", "batches", "devices", "parameters"}
    if isinstance(decoded, older.Snap) and isinstance(message, wire.Snap):
        assert [(d.index, d.uuid, d.allocated) for d in message.devices] == [
            (d.index, d.uuid, d.allocated) for d in decoded.devices
        ]
        assert (message.steps and message.steps.count) == (decoded.steps and decoded.steps.count)


def test_messages_of_the_older_hook_are_decoded() -> None:
    sent = older.Snap(SESSION, 7, 5, older.Progress(3, 0.25), None, (), (older.Device(0, "GPU-1", 10),), 0)
    expected = wire.Snap(SESSION, 7, 5, wire.Progress(3, 0.25), devices=(wire.Device(0, "GPU-1", 10),), errors=0)
    assert expected == decode(older.encode(sent))
    assert wire.Hello(SESSION, 0, 1, facts={"torch": "2.1"}) == decode(
        older.encode(older.Hello(SESSION, 0, 1, facts={"torch": "2.1"}))
    )
