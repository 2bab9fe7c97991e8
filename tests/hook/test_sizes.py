"""The samples and tokens in the batches of drawn loaders, against those that the datasets counted themselves."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests import needs

torch = needs.torch()

from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402 - after the skip

from gpugauge.hook.record import Record  # noqa: E402 - after the skip
from gpugauge.hook.work import Work, reader  # noqa: E402 - after the skip
from gpugauge.sessions.listener import Sessions  # noqa: E402 - after the skip
from gpugauge.wire.record import SAMPLES, STEPS, TOKENS  # noqa: E402 - after the skip
from tests.drawn import seeds  # noqa: E402 - after the skip
from tests.hook.conftest import RunFork, finished, until  # noqa: E402 - after the skip


class Rows(Dataset[Any]):  # type: ignore[misc]  # torch is Any to mypy
    """Rows of a kind, which are counted when they are read."""

    def __init__(self, make: Any, number: int) -> None:
        self.make, self.number, self.read = make, number, 0

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return self.make(index)


class Stream(IterableDataset[Any]):  # type: ignore[misc]  # torch is Any to mypy
    """The same rows without a length."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return map(self.rows.__getitem__, range(self.rows.number))


class Repeated:
    """A sampler of batches around another one, as that of the loaders of timm and Ultralytics."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sampler)


ROWS = {
    "tensor": lambda _: torch.zeros(3),
    "pair": lambda i: (torch.zeros(2, 4), i % 3),
    "mapping": lambda i: {"name": str(i), "image": torch.zeros(2), "label": i},
    "nested": lambda i: (str(i), {"deep": (torch.zeros(2),)}),
    "tokens": lambda i: {"input_ids": torch.zeros(7, dtype=torch.long), "labels": torch.zeros(7, dtype=torch.long)},
}


def taken(loader: Any, work: Work | None = None) -> Work:
    """Read all batches of a loader as the hook does."""
    work, iterator, read = work or Work(Record()), iter(loader), None
    for batch in iterator:
        read = read or reader(iterator, batch, work)
        read(batch, work)
    return work


def stepped(work: Work) -> tuple[int | None, int | None]:
    """Return the samples and tokens after a step."""
    work.count()
    return work.counted(SAMPLES), work.counted(TOKENS)


def own_collate(rows: list[Any]) -> Any:
    """Do what torch does, which the hook cannot know."""
    return torch.utils.data.default_collate(rows)


@seeds(range(80))
def test_drawn_loaders_are_counted_exactly(seed: int) -> None:
    drawn = random.Random(seed)
    kind, number, size = drawn.choice(list(ROWS)), drawn.randint(1, 40), drawn.randint(1, 12)
    rows, stream, own = Rows(ROWS[kind], number), drawn.random() < 0.4, drawn.random() < 0.4
    options: dict[str, Any] = {"batch_size": size, "drop_last": drawn.random() < 0.3, "shuffle": not stream}
    if not stream and drawn.random() < 0.3:  # batches of drawn sizes
        cuts = [0, *sorted(drawn.sample(range(1, number), min(number - 1, 3))), number]
        options = {"batch_sampler": [list(range(a, b)) for a, b in itertools.pairwise(cuts)]}
    loader: Any = DataLoader(
        Stream(rows) if stream else rows, **options, **({"collate_fn": own_collate} if own else {})
    )
    if not stream and drawn.random() < 0.5:
        object.__setattr__(loader, "batch_sampler", Repeated(loader.batch_sampler))
    work = taken(loader)
    used = number - number % size if options.get("drop_last") else number
    # With its own collation, the size of the first batch must be known before: not in a stream that is shorter than a
    # batch, and not with a sampler that makes batches of any size.
    known = used and not (own and ("batch_sampler" in options or (stream and number < size)))
    assert stepped(work) == (used if known else None, 7 * used if kind == "tokens" and used else None)


def flat(rows: list[Any]) -> dict[str, Any]:
    return {"input_ids": torch.cat([row["input_ids"] for row in rows])[None]}


@pytest.mark.parametrize(
    ("kind", "options", "samples", "tokens"),
    [
        ("pair", {"batch_size": None}, None, None),  # no batches: the first dimension is that of a sample
        ("pair", {"batch_size": 4, "collate_fn": lambda rows: torch.zeros(9)}, None, None),  # nodes
        ("pair", {"batch_size": 4, "collate_fn": list}, None, None),
        ("tokens", {"batch_size": 4, "collate_fn": flat}, None, 140),  # packed sequences
        ("tokens", {"batch_size": None}, None, 140),
    ],
)  # fmt: skip
def test_a_size_that_is_not_known_is_absent(
    kind: str, options: dict[str, Any], samples: int | None, tokens: int | None
) -> None:
    assert stepped(taken(DataLoader(Rows(ROWS[kind], 20), **options))) == (samples, tokens)


def test_a_batch_larger_than_the_loader_makes_leaves_the_sum_unknown() -> None:
    work = Work(Record())
    iterator = iter(DataLoader(Rows(ROWS["tensor"], 8), batch_size=2, collate_fn=own_collate))
    read = reader(iterator, batch := next(iterator), work)
    read(batch, work)
    assert stepped(work) == (2, None)
    read(torch.zeros(3, 3), work)
    assert stepped(work) == (None, None)


def test_batches_count_at_the_step_that_follows_them() -> None:
    work = Work(Record())
    assert (work.counted(SAMPLES), stepped(work)) == (None, (None, None))
    taken(DataLoader(Rows(ROWS["tokens"], 5), batch_size=2), work)
    assert work.counted(SAMPLES) is None
    assert stepped(work) == (5, 35)
    taken(DataLoader(Rows(ROWS["tokens"], 3), batch_size=2), work)
    assert (work.counted(SAMPLES), stepped(work)) == (5, (8, 56))
    assert stepped(taken(DataLoader(Rows(ROWS["pair"], 5), batch_size=2), work)) == (13, None)  # not all have tokens


@pytest.mark.parametrize(("steps", "counted"), [(0, 9), (1, 9), (5, 40)])
def test_the_first_report_is_of_a_step_that_is_counted(steps: int, counted: int) -> None:
    # The program reports 9 samples after the step of an optimizer, whose batches held 8 in each step.
    work = Work(record := Record())
    for step in range(steps):
        work.samples += 8
        record.words[STEPS] = step + 1
        work.count()
    work.report(SAMPLES, 9)
    assert work.counted(SAMPLES) == counted
    work.report(SAMPLES, 9)
    work.samples += 8
    work.count()
    assert work.counted(SAMPLES) == counted + 9


def test_batches_of_a_thread_that_did_not_train_are_dropped() -> None:
    record = Record()
    work, other = Work(record), Work(record)
    work.samples = 8
    work.count()
    work.samples, other.samples = 20, 5
    work.add(other)
    assert stepped(work) == (13, None)


NESTED = """
import threading
import torch
from torch.utils.data import DataLoader
from gpugauge import hook

def around(loader):
    batches = iter(loader)
    ahead = next(batches)
    for batch in batches:
        yield ahead
        ahead = batch
    yield ahead

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.randn(22, 3), batch_size=4)
def train():
    for number, batch in enumerate({loop}):
        model(batch).sum().backward()
        if number < 3:
            optimizer.step()

{run}
"""


@pytest.mark.torch
@pytest.mark.parametrize("run", ["train()", "thread = threading.Thread(target=train); thread.start(); thread.join()"])
@pytest.mark.parametrize(
    ("loop", "samples"),
    [
        ("loader", 12),
        ("hook.batches(loader)", 12),
        ("hook.batches(around(loader))", 12),
        ("hook.batches(hook.batches(around(loader)))", 12),
        ("around(loader)", 16),  # nothing shows that a batch is read ahead
        ("hook.batches([torch.randn(4, 3)] * 5)", None),
    ],
)
def test_a_nested_loader_shows_the_size(loop: str, samples: Any, run: str, listener: Sessions, fork: RunFork) -> None:
    finished(fork(NESTED.format(loop=loop, run=run)))
    until(lambda: [s.connected for s in listener.view()] == [False])
    assert [(s.snap.errors, s.snap.samples) for s in listener.view() if s.snap] == [(0, samples)]
