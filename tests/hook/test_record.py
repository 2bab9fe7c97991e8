"""This process's page: sealed, gone with the descriptor, and never written to by a child."""

import fcntl
import os
from pathlib import Path

import pytest

from gpugauge.hook.record import Page
from gpugauge.wire import record as wire_page
from gpugauge.wire.record import PAGE_BYTES, PHASES


def shown(descriptor: int) -> str | None:
    found = wire_page.read(os.pread(descriptor, PAGE_BYTES, 0), 100, 0.0)
    return found.phase if found else None


def test_the_page_is_sealed_and_shows_what_is_written(page: Page) -> None:
    assert page.descriptor is not None
    seals = fcntl.fcntl(page.descriptor, fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_SHRINK
    assert seals & fcntl.F_SEAL_GROW
    assert shown(page.descriptor) is None
    page.write(2, 50, 1, 1, [0] * len(PHASES))
    assert shown(page.descriptor) == PHASES[2]


def test_a_program_that_closes_all_descriptors_keeps_its_own(page: Page) -> None:
    descriptor = page.descriptor
    assert descriptor is not None
    with Path(os.devnull).open() as others:
        os.dup2(others.fileno(), descriptor)  # closes ours, and gives its number to something else
    assert page.descriptor is None
    page.write(2, 50, 1, 1, [0] * len(PHASES))
    page.close()
    os.close(descriptor)  # still there
    assert page.descriptor is None


def test_a_machine_without_memfd_has_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError

    monkeypatch.setattr(os, "memfd_create", refused)
    page = Page()
    page.open()
    page.write(2, 50, 1, 1, [0] * len(PHASES))
    assert page.descriptor is None
    page.close()
