"""The memory of the shared record: seals, closed descriptors, machines without memfd."""

import fcntl
import os
from pathlib import Path

import pytest

from gpugauge.hook.record import Record
from gpugauge.wire import record as wire_record
from gpugauge.wire.record import PHASES, RECORD_BYTES


def shown(descriptor: int) -> str | None:
    found = wire_record.read(os.pread(descriptor, RECORD_BYTES, 0), 100, 0.0)
    return found.phase if found else None


def begin(record: Record) -> None:
    record.words[wire_record.PHASE], record.words[wire_record.SINCE] = 2, 0
    record.words[wire_record.SEQUENCE] = record.words[wire_record.SEQUENCE_COPY] = 1


def test_the_words_before_open_are_kept() -> None:
    record = Record()
    begin(record)
    record.open()
    assert record.descriptor is not None
    assert shown(record.descriptor) == PHASES[2]
    record.close()


def test_the_record_is_sealed_and_readable(record: Record) -> None:
    assert record.descriptor is not None
    seals = fcntl.fcntl(record.descriptor, fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_SHRINK
    assert seals & fcntl.F_SEAL_GROW
    assert shown(record.descriptor) is None
    begin(record)
    assert shown(record.descriptor) == PHASES[2]


def test_a_reused_descriptor_is_not_closed(record: Record) -> None:
    descriptor = record.descriptor
    assert descriptor is not None
    with Path(os.devnull).open() as others:
        os.dup2(others.fileno(), descriptor)  # closes the memfd and reuses its number
    assert record.descriptor is None
    begin(record)
    record.close()
    os.close(descriptor)  # it is still open
    assert record.descriptor is None


def test_a_machine_without_memfd_has_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError

    monkeypatch.setattr(os, "memfd_create", refused)
    record = Record()
    record.open()
    begin(record)
    assert record.descriptor is None
    record.close()
