"""The shared record: writing, reading, and rejection of invalid records."""

import struct

from gpugauge.wire import record as wire_record
from gpugauge.wire.record import PHASES, RECORD_BYTES, SharedRecord
from tests.drawn import cases

SECOND = 1_000_000_000
LOADING, TRAINING = PHASES.index("loading"), PHASES.index("training")


def record(sequence: int = 1, phase: int = LOADING, since: int = 10 * SECOND) -> bytearray:
    memory = bytearray(RECORD_BYTES)
    wire_record.write_head(memory)
    spent = [0] * len(PHASES)
    spent[TRAINING], spent[LOADING] = 4 * SECOND, SECOND
    wire_record.write(memory, [sequence, phase, since, 7, 8, *spent, sequence])
    return memory


def test_read_adds_the_time_of_the_current_phase() -> None:
    seconds = {**dict.fromkeys(PHASES, 0.0), "training": 4.0, "loading": 3.5}
    expected = SharedRecord("loading", 1700000000.0, 7, 8, seconds)
    assert expected == wire_record.read(bytes(record()), 12 * SECOND + SECOND // 2, 1700000002.5)


def test_the_values_of_version_1_2_are_read() -> None:
    memory = record()
    waited = [0] * len(PHASES)
    waited[TRAINING] = SECOND
    wire_record.write(memory, [1, TRAINING, SECOND, 7, 8, *[0] * len(PHASES), 1, 9 * SECOND, 5, 6, *waited])
    found = wire_record.read(bytes(memory), 12 * SECOND, 1700000002.5)
    assert found is not None
    assert (found.last_step, found.samples, found.tokens) == (1699999999.5, 5, 6)
    assert found.waits == {"training": 1.0}


def test_a_half_written_record_is_rejected() -> None:
    old, new = record(1), record(2, TRAINING)
    end = next(i for i in reversed(range(RECORD_BYTES)) if new[i]) + 8
    mixed = [new[:cut] + old[cut:] for cut in range(16, end - 8, 8)]
    assert [None] * len(mixed) == [wire_record.read(bytes(m), 12 * SECOND, 0.0) for m in mixed]


@cases(
    "data",
    [
        b"",
        bytes(RECORD_BYTES),
        b"\xff" * RECORD_BYTES,
        bytes(record())[:40],
        bytes(record(0)),  # nothing is written yet
        bytes(record(since=13 * SECOND)),  # another clock
        struct.pack("=4sI", b"gpg1", 1_000_000) + bytes(record())[8:],
    ],
)
def test_an_invalid_record_is_rejected(data: bytes) -> None:
    assert wire_record.read(data, 12 * SECOND, 0.0) is None


def test_phases_of_a_newer_version_are_other() -> None:
    count = len(PHASES) + 2
    spent = [0] * count
    spent[-1] = SECOND
    data = struct.pack(
        f"=4sI5Q{count}Q4Q{count}Q", b"gpg1", count, 3, count - 2, 11 * SECOND, 7, 8, *spent, 3, 0, 0, 0, *spent
    )
    found = wire_record.read(data, 12 * SECOND, 0.0)
    assert found is not None
    assert ("other", 2.0) == (found.phase, found.seconds["other"])
