"""The page: what is written is read, at any moment, and what is not a page says nothing."""

import struct

import pytest

from gpugauge.wire import record as wire_page
from gpugauge.wire.record import PAGE_BYTES, PHASES, Page

SECOND = 1_000_000_000
LOADING, TRAINING = PHASES.index("loading"), PHASES.index("training")


def page(sequence: int = 1, phase: int = LOADING, since: int = 10 * SECOND) -> bytearray:
    memory = bytearray(PAGE_BYTES)
    wire_page.write_head(memory)
    spent = [0] * len(PHASES)
    spent[TRAINING], spent[LOADING] = 4 * SECOND, SECOND
    wire_page.write(memory, sequence, phase, since, 7, 8, spent)
    return memory


def test_what_is_written_is_read_with_the_time_that_went_by_since() -> None:
    seconds = {**dict.fromkeys(PHASES, 0.0), "training": 4.0, "loading": 3.5}
    expected = Page("loading", 1700000000.0, 7, 8, seconds)
    assert expected == wire_page.read(bytes(page()), 12 * SECOND + SECOND // 2, 1700000002.5)


def test_a_page_in_the_midst_of_being_written_is_not_believed() -> None:
    old, new = page(1), page(2, TRAINING)
    end = next(i for i in reversed(range(PAGE_BYTES)) if new[i]) + 8
    mixed = [new[:cut] + old[cut:] for cut in range(16, end - 8, 8)]
    assert [None] * len(mixed) == [wire_page.read(bytes(m), 12 * SECOND, 0.0) for m in mixed]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(PAGE_BYTES),
        b"\xff" * PAGE_BYTES,
        bytes(page())[:40],
        bytes(page(0)),  # nothing was written yet
        bytes(page(since=13 * SECOND)),  # another clock
        struct.pack("=4sI", b"gpg1", 1_000_000) + bytes(page())[8:],
    ],
)
def test_what_makes_no_sense_says_nothing(data: bytes) -> None:
    assert wire_page.read(data, 12 * SECOND, 0.0) is None


def test_phases_of_a_newer_version_are_other() -> None:
    count = len(PHASES) + 2
    spent = [0] * count
    spent[-1] = SECOND
    data = struct.pack(f"=4sI5Q{count}QQ", b"gpg1", count, 3, count - 2, 11 * SECOND, 7, 8, *spent, 3)
    found = wire_page.read(data, 12 * SECOND, 0.0)
    assert found is not None
    assert ("other", 2.0) == (found.phase, found.seconds["other"])
