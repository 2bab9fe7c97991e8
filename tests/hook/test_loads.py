"""The totals of loaders: they are those of one loader, or not reported."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest

from gpugauge.hook.counts import workers as module
from gpugauge.hook.counts.workers import COUNT, CPU, FETCHED, SLOT_WORDS, Loads


class Iterator:
    """An iterator of a loader without workers, which has loaded some batches."""

    def __init__(self, batches: int = 0) -> None:
        self.words, self.process = [0] * SLOT_WORDS, os.getpid()
        self.words[FETCHED] = self.words[COUNT] = batches
        self.words[CPU] = batches * 1_000_000
        self._dataset_fetcher: Any = type("Fetcher", (), {"gpugauge_meter": self}) if batches else None


def in_thread(loads: Loads) -> None:
    """Load ten batches in the training thread, and end."""
    iterator = Iterator(10)
    loads.train(iterator)
    del iterator
    gc.collect()


def in_workers(loads: Loads, pids: list[int]) -> Iterator:
    """Load ten batches in each worker; return the iterator."""
    iterator = Iterator()
    loads.open(1)
    loads.begin_epoch(iterator, pids)
    assert loads._memory is not None
    for pid in pids:
        at = loads._memory.slot_of(pid)
        assert at is not None
        loads._memory.words[at + FETCHED] = loads._memory.words[at + COUNT] = 10
    loads.train(iterator)
    return iterator


def count(loads: Loads) -> int | None:
    found = loads.message(declared=False)
    return found.batches if found else None


def test_epochs_of_one_loader_add_up() -> None:
    loads = Loads()
    in_thread(loads)
    in_thread(loads)
    assert count(loads) == 20

    loads = Loads()
    for pids in ([1], [2], [3]):
        iterator = in_workers(loads, pids)
        assert count(loads) == 10 * pids[0]
        del iterator
        gc.collect()


def test_a_forked_child_does_not_report_the_batches_of_its_parent() -> None:
    loads, iterator = Loads(), Iterator(10)
    iterator.process -= 1
    loads.train(iterator)
    before = count(loads)
    iterator.words[FETCHED] = iterator.words[COUNT] = 3

    assert (before, count(loads)) == (None, 3)


def test_loaders_by_turns_are_not_one_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Loads()
    in_thread(loads)
    kept = in_workers(loads, [1, 2])
    assert count(loads) is None

    monkeypatch.setattr(module, "_BY_TURNS_NS", 0)
    assert count(loads) == 30
    del kept


def test_two_loaders_at_a_time_are_not_one_loader() -> None:
    loads = Loads()
    first, second = in_workers(loads, [1]), in_workers(loads, [2])
    assert count(loads) is None
    del first, second
