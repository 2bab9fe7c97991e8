from __future__ import annotations

import pytest
from tests.drawn import cases

from gpugauge.driver.api import Reply
from gpugauge.driver.frames import message, packed, reply, unpacked

SAMPLES = [(1_790_000_000_000_000, 100), ((1 << 64) - 1, 0xFFFFFFFF), (0, 0)]


def test_empty_fields_are_not_sent() -> None:
    sent = message(id=0, op="read", index=0, values={"mig": {}}, errors={}, calls={}, events=[], failed=None)

    assert sent == {"id": 0, "op": "read", "index": 0, "values": {"mig": {}}}
    assert reply(sent) == Reply(0, "read", 0, values={"mig": {}})


def test_samples_are_sent_packed() -> None:
    answer = reply(message(id=1, op="read", index=2, samples={"gpu": packed(SAMPLES).hex(), "process": [[5, 7, 1, 2]]}))

    assert answer.samples == {"gpu": SAMPLES, "process": [[5, 7, 1, 2]]}


def test_ring_without_new_samples() -> None:
    assert reply(message(id=1, op="read", samples={"gpu": ""})).samples == {"gpu": []}


@cases("samples", [{"gpu": "xy"}, {"gpu": "00" * 15}, ["gpu"], "gpu"])
def test_invalid_samples(samples: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        reply({"id": 1, "op": "read", "samples": samples})


def test_invalid_reply() -> None:
    with pytest.raises(TypeError):
        reply({"id": 1, "op": "read", "field_of_tomorrow": 1})


def test_packing_is_reversible() -> None:
    assert unpacked(packed(SAMPLES).hex()) == SAMPLES
