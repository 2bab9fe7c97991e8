"""The samples and tokens in the batches of drawn loaders, against those that the datasets counted themselves."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests import needs

torch = needs.torch()

from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402 - after the skip

from gpugauge.hook.counts.work import Work  # noqa: E402 - after the skip
from gpugauge.hook.sizes import learn  # noqa: E402 - after the skip


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


ROWS = {
    "tensor": lambda _: torch.zeros(3),
    "pair": lambda i: (torch.zeros(2, 4), i % 3),
    "mapping": lambda i: {"name": str(i), "image": torch.zeros(2), "label": i},
    "nested": lambda i: (str(i), {"deep": (torch.zeros(2),)}),
    "tokens": lambda i: {"input_ids": torch.zeros(7, dtype=torch.long), "labels": torch.zeros(7, dtype=torch.long)},
}


def count(loader: Any) -> Work:
    """Read all batches of a loader as the hook does."""
    work, iterator = Work(), iter(loader)
    for batch in iterator:
        read = vars(iterator).get("gpugauge_size")
        work.add(read(batch) if read else learn(iterator, batch))
    return work


@pytest.mark.parametrize("seed", range(60))
def test_drawn_loaders_are_counted_exactly(seed: int) -> None:
    drawn = random.Random(seed)
    kind = drawn.choice(list(ROWS))
    rows = Rows(ROWS[kind], drawn.randint(1, 40))
    stream = drawn.random() < 0.4
    size = drawn.randint(1, 12)
    loader: Any = DataLoader(
        Stream(rows) if stream else rows, batch_size=size, drop_last=drawn.random() < 0.3, shuffle=not stream
    )
    work = count(loader)
    used = rows.number - rows.number % size if loader.drop_last else rows.number
    # Of a stream that is shorter than a batch, the first batch does not show the size.
    expected = None if not used or (stream and rows.number < size) else used
    assert work.samples == expected
    assert work.tokens == (7 * used if kind == "tokens" and used else None)


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
    work = count(DataLoader(Rows(ROWS[kind], 20), **options))
    assert (work.samples, work.tokens) == (samples, tokens)


def test_a_batch_larger_than_the_first_one_leaves_the_sum_unknown() -> None:
    work = Work()
    iterator = iter(DataLoader(Rows(ROWS["tensor"], 8), batch_size=2))
    work.add(learn(iterator, next(iterator)))
    assert work.samples == 2
    work.add(iterator.gpugauge_size(torch.zeros(3, 3)))
    assert work.samples is None


def test_flops_are_those_that_were_stated_before_each_step() -> None:
    work = Work()
    assert work.flops(5) is None
    work.state_flops(10.0, 5)
    assert work.flops(8) == 30
    work.state_flops(2.0, 8)
    assert work.flops(10) == 34
