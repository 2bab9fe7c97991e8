"""A training with a drawn loader; it prints what it measured itself, by step. The argument is a Loader (draw.py) as
JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import gpugauge.hook

WARM = 4.0  # seconds that are not measured

Work = dict[str, Any]
Batch = tuple[torch.Tensor, float, float]


def spin(seconds: float) -> None:
    """Use a CPU for so many seconds of CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(200))


def work(item: Work, index: int) -> None:
    """Do what one batch, or one item of it, costs."""
    spin(item.get("cpu", 0.0))
    if item.get("sleep"):
        time.sleep(item["sleep"])
    files = item.get("files", 0)
    for place in range(files):
        read_cold(Path(item["folder"]) / str((index * files + place) % item["of"]))


def read_cold(path: Path) -> None:
    """Read a file from storage, also if it is cached."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    while os.read(file, 1 << 20):
        pass
    os.close(file)


def tensor(index: int) -> torch.Tensor:
    return torch.full((8,), float(index % 7))


_fetch: list[tuple[float, float]] = []  # time and queued() at the begin of the batch that is being loaded


def begin_fetch() -> None:
    """Begin a batch with its first item."""
    if not _fetch:
        _fetch.append((time.monotonic(), queued()))


class Items(Dataset):  # type: ignore[misc,type-arg,unused-ignore]  # torch may be missing
    """Items by index."""

    def __init__(self, loader: Work) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return int(self._loader["items"])

    def __getitem__(self, index: int) -> torch.Tensor:
        begin_fetch()
        work(self._loader["item"], index)
        return tensor(index)


class Stream(IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]  # torch may be missing
    """The same items in their order, divided among the workers."""

    def __init__(self, loader: Work) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, int(self._loader["items"]), step):
            begin_fetch()
            work(self._loader["item"], index)
            yield tensor(index)


class Collate:
    """A collate function with work of its own. It returns the batch, and the seconds that its loading took, with the
    part in which it waited for a CPU.
    """

    def __init__(self, loader: Work) -> None:
        self._work = loader["collate"]

    def __call__(self, items: list[torch.Tensor]) -> Batch:
        work(self._work, int(items[0][0]))
        begin, delayed = _fetch.pop()
        return torch.stack(items), time.monotonic() - begin, queued() - delayed


def generator(dataset: Items, collate: Collate, size: int) -> Iterator[Batch]:
    """Batches of a program without a DataLoader."""
    for begin in range(0, len(dataset), size):
        yield collate([dataset[index] for index in range(begin, begin + size)])


def queued() -> float:
    """Return the seconds for which this thread has waited for a CPU."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def batches(loader: Work) -> Any:
    """Return an iterable of batches."""
    dataset, collate = Items(loader), Collate(loader)
    if loader["generator"] and not loader["workers"]:
        return gpugauge.hook.batches(generator(dataset, collate, loader["batch"]))
    return DataLoader(
        Stream(loader) if loader["iterable"] else dataset,
        batch_size=loader["batch"],
        num_workers=loader["workers"],
        collate_fn=collate,
        multiprocessing_context=loader["method"] if loader["workers"] else None,
    )


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its workers."""
    found = time.process_time()
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def train(loader: Work) -> dict[str, Any]:
    """Train for `loader["seconds"]` after the first batch; return the steps, each with the values of measure.Step."""
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    steps: list[tuple[float, ...]] = []
    iterator = iter(batches(loader))
    next(iterator)
    begin = time.monotonic()
    while (start := time.monotonic()) - begin < loader["seconds"]:
        delayed = queued()
        batch, loading, loading_delayed = next(iterator)
        arrived, delayed_then = time.monotonic(), queued()
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        spin(loader["own"] * loader["busy"])
        time.sleep(loader["own"] * (1.0 - loader["busy"]))
        end, delays = time.monotonic(), (delayed_then - delayed, float(loading_delayed), queued() - delayed_then)
        if start - begin > WARM:
            steps.append((arrived - start, float(loading), end - arrived, *delays, cpu_seconds()))
    return {"steps": steps}


def main() -> None:
    loader = json.loads(sys.argv[1])

    def stop(*_: object) -> None:
        loader["seconds"] = 0.0

    signal.signal(signal.SIGUSR1, stop)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(json.dumps(train(loader)), flush=True)
    os._exit(0)  # the workers need not deliver the rest


if __name__ == "__main__":
    main()
