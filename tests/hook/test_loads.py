"""The totals of loaders: they are those of one loader, or not reported."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpugauge.hook import workers as module
from gpugauge.hook.workers import (
    BEGUN,
    COUNT,
    CPU,
    FETCHED,
    PID,
    SLOT_WORDS,
    SLOTS,
    Loads,
    Meter,
    SlotMemory,
    worker_place,
)
from tests.drawn import seeds

from .conftest import RunFork


class Iterator:
    """An iterator of a loader without workers, which has loaded some batches."""

    def __init__(self, batches: int = 0) -> None:
        self.words, self.process = [0] * SLOT_WORDS, os.getpid()
        self.place = self.words, 0
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


PROGRAM = Path(__file__).with_name("loaded.py")


@pytest.mark.everything
@pytest.mark.torch
def test_drawn_loaders_are_measured_in_their_workers(tmp_path: Path, fork: RunFork) -> None:
    seed, count = os.environ.get("GPUGAUGE_LOADERS", "23 8").split()
    training = fork(PROGRAM.read_text(), (seed, count, str(tmp_path)))
    output, errors = training.communicate()
    assert training.returncode == 0, errors
    drawn = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(drawn) == int(count)
    for training in drawn:
        check(training)


def check(training: dict[str, Any]) -> None:
    """Compare the counts of one training with the notes of its datasets."""
    drawn, found = training["drawn"], training["found"]
    context = {**drawn, "found": found}
    assert training["errors"] == 0, context
    first = drawn["epochs"] * max(1, drawn["workers"])  # fetches that are the start of a loader
    if drawn["batches"] == first and found is None:
        return
    assert found is not None, context
    assert found["batches"] == drawn["batches"], context
    # Short ones count with the next one that is measured.
    short = drawn["size"] * sum(drawn["work"]) < 0.03
    least = 0 if short else drawn["batches"] - first
    assert least <= found["measured"] <= drawn["batches"] - first, context
    if short:
        return
    assert found["epochs"] == drawn["epochs"], context
    starts = 0 if not drawn["workers"] else 1 if drawn["persistent"] else drawn["epochs"]
    assert found["starts"] == starts, context
    assert (found["start_seconds"] > 0) == (starts > 0), context
    items = [note for notes in training["notes"].values() for note in notes]
    share = found["measured"] / drawn["batches"]
    cpu, slept = (sum(item[column] for item in items) * share for column in (1, 2))
    # What a batch needs besides its items, of at least 30 ms; more with cold caches, beside other programs.
    besides = 0.004 * found["measured"]
    assert found["cpu_seconds"] == pytest.approx(cpu, rel=0.15, abs=besides), context
    assert found["blocked_seconds"] + found["storage_seconds"] == pytest.approx(slept, rel=0.15, abs=besides), context


def test_slots_are_taken_and_released() -> None:
    memory = SlotMemory()
    many = memory.take(range(1, SLOTS + 9))
    assert len(many) == SLOTS
    assert memory.take([5000]) == []
    memory.words[many[3] + COUNT] = 7
    memory.release(many[3:5])
    assert memory.slot_of(4) is None
    (again,) = memory.take([5000])
    assert (again, memory.words[again + PID], memory.words[again + COUNT]) == (many[3], 5000, 0)
    assert memory.slot_of(5000) == again


def test_another_process_finds_the_memory_of_its_parent() -> None:
    memory = SlotMemory()
    program = (
        "import os\n"
        "from gpugauge.hook.workers import worker_place\n"
        "input()\n"  # it has its slot
        "words, at = worker_place(None, os.getppid())\n"
        "words[at + 2] += 5\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as child:
        (at,) = memory.take([child.pid])
        child.communicate(b"\n")
        assert child.returncode == 0
    assert memory.words[at + COUNT] == 5
    assert worker_place(None, None) is None
    assert worker_place(None, 2**22) is None


def test_short_fetches_are_measured_by_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    words, clock, now = [0] * SLOT_WORDS, [0, 0, 0], 1
    meter, reads = Meter(lambda: (words, 0), bool), list[int]()

    def read() -> tuple[int, ...]:
        reads.append(1)
        return tuple(clock)

    monkeypatch.setattr(meter, "_read", read)
    monkeypatch.setattr(module, "CLOCKS", (lambda: now,))
    for _ in range(1001):
        meter.begin(now)
        clock[0] += 800_000
        now += 1_000_000
        meter.end(now - 1_000_000)

    assert words[FETCHED] == 1001
    assert 950 <= words[COUNT] <= 1000
    assert words[CPU] == pytest.approx(0.8e6 * words[COUNT], rel=0.001)
    assert len(reads) <= 44


def measured(function: Callable[[int], int], words: list[int]) -> Callable[[int], int]:
    """Return the function as that of a fetcher which is measured."""
    meter = Meter(lambda: (words, 0), bool)
    return lambda index: meter.fetch(lambda _, at: function(at), None, index)


def test_the_first_fetch_is_a_start_and_errors_end_the_measurement() -> None:
    words, errors = [0] * SLOT_WORDS, list[int]()
    fetch = measured(lambda index: index + 1, words)

    assert [fetch(1), fetch(2), fetch(3)] == [2, 3, 4]
    assert (words[FETCHED], words[COUNT]) == (3, 1)
    assert words[BEGUN] > 0

    def broken() -> tuple[list[int], int]:
        raise OSError("no memory")

    meter = Meter(broken, lambda: errors.append(1))
    assert [meter.fetch(lambda _, at: at, None, index) for index in (1, 2)] == [1, 2]
    assert errors == [1]


def test_an_error_of_the_dataset_reaches_the_program() -> None:
    words = [0] * SLOT_WORDS

    def dataset(index: int) -> int:
        if index == 2:
            raise StopIteration
        return index

    fetch = measured(dataset, words)
    assert (fetch(0), fetch(1)) == (0, 1)
    with pytest.raises(StopIteration):
        fetch(2)
    assert fetch(3) == 3
    assert words[FETCHED] == 3


def test_a_loader_inside_a_dataset_is_a_part_of_the_outer_one() -> None:
    inner_words, outer_words = [0] * SLOT_WORDS, [0] * SLOT_WORDS
    inner = measured(lambda index: index, inner_words)
    outer = measured(lambda index: inner(index) + inner(index), outer_words)

    assert [outer(1), outer(2), outer(3)] == [2, 4, 6]
    assert (outer_words[FETCHED], inner_words[FETCHED]) == (3, 0)


@seeds(range(30))
def test_the_wait_of_the_training_for_a_cpu_never_falls(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts it for each thread, and the training may go on in another one."""
    draw = random.Random(seed)
    waits, thread = dict.fromkeys(range(4), 0), 0
    monkeypatch.setattr(module, "get_ident", lambda: thread)
    monkeypatch.setattr(module, "queued_nanoseconds", lambda: waits[thread])
    loads, last, trainer, most = Loads(), 0.0, 0, 0
    in_thread(loads)
    for _ in range(50):
        if trains := draw.random() < 0.7:
            trainer = draw.randrange(4) if draw.random() < 0.1 else trainer
            thread, longer = trainer, draw.choice((0, 1_000_000_000))
            most += longer
        else:  # another thread, of the hook or of the program
            thread = draw.choice([other for other in waits if other != trainer])
            longer = 5_000_000_000
        waits[thread] += longer
        message = loads.message(declared=False, trains=trains)
        assert message is not None
        assert last <= (message.thread_queued_seconds or 0.0) <= most / 1e9
        last = message.thread_queued_seconds or 0.0
