"""Trainings with drawn loaders under the hook, in one process: prints what the datasets did, and what the hook counted.

It takes the seed, the number of loaders and a folder for the notes of the datasets.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from gpugauge.hook import arming

arming.arm()
import torch  # noqa: E402 - after the hook
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info  # noqa: E402 - after the hook

from gpugauge.hook import install  # noqa: E402 - after the hook


def item(index: int, cpu: float, sleep: float, notes: Path) -> torch.Tensor:
    """Load an item, and write down what it took."""
    start, used = time.monotonic(), time.thread_time()
    end = used + cpu
    while time.thread_time() < end:
        pass
    time.sleep(sleep)
    note = [index, time.thread_time() - used, sleep, time.monotonic() - start]
    with (notes / str(os.getpid())).open("a") as file:
        file.write(json.dumps(note) + "\n")
    return torch.ones(2)


class Items(Dataset):  # type: ignore[misc,type-arg,unused-ignore]  # torch may be missing
    def __init__(self, count: int, cpu: float, sleep: float, notes: Path) -> None:
        self.count, self.work = count, (cpu, sleep, notes)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return item(index, *self.work)


class Stream(IterableDataset):  # type: ignore[misc,type-arg,unused-ignore]  # torch may be missing
    def __init__(self, count: int, cpu: float, sleep: float, notes: Path) -> None:
        self.count, self.work = count, (cpu, sleep, notes)

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        for index in range(info.id if info else 0, self.count, info.num_workers if info else 1):
            yield item(index, *self.work)


def train(seed: int, folder: Path) -> dict[str, object]:
    """Run the training of a seed; return what it did and what was counted."""
    draw = random.Random(seed)
    workers, size = draw.choice([0, 0, 1, 2, 3]), draw.choice([1, 2, 4])
    work = draw.choice([0.0, 0.002, 0.01]), draw.choice([0.0, 0.004, 0.02])
    count = size * draw.randint(max(1, workers), 12)
    notes = folder / str(seed)
    notes.mkdir()
    kind = draw.choice([Items, Items, Stream])
    method = draw.choice([None, None, "spawn", "forkserver"]) if workers else None
    loader = DataLoader(
        kind(count, *work, notes),
        batch_size=size,
        num_workers=workers,
        persistent_workers=workers > 0 and draw.random() < 0.5,
        multiprocessing_context=method,
    )
    validation = DataLoader(Items(6, 0.003, 0.0, folder), batch_size=2, num_workers=draw.choice([0, 1]))
    assert install.observer is not None
    state, epochs = install.observer.state, draw.randint(1, 3)
    install.observer.reset()
    state._seen_facts.clear()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batches = 0
    for _ in range(epochs):
        model.train()
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
            batches += 1
        model.eval()
        with torch.no_grad():
            for batch in validation:
                model(batch)
    del batch
    found = state.loads.message(declared=False)
    noted = {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in notes.iterdir()}
    drawn = {"workers": workers, "size": size, "epochs": epochs, "batches": batches, "method": method, "work": work}
    drawn |= {"persistent": loader.persistent_workers, "stream": kind is Stream}
    return {"drawn": drawn, "notes": noted, "found": vars(found) if found else None, "errors": install.observer.errors}


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    seed, count, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    for number in range(count):
        print(json.dumps(train(seed + number, folder)), flush=True)


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")  # as before Python 3.14
    main()
