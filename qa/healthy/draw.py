"""Draws trainings that are healthy in unusual ways. Each prints at its end for which share of the time it waited."""

from __future__ import annotations

import random
import re
import textwrap
from dataclasses import dataclass

SECONDS = 45.0  # of the training in each

# What can be drawn for each place of PROGRAM: the name of a variant after #, and its text.
_LOADER = """
# in memory
loader = [(torch.rand(8, 16), torch.rand(8, 4)) for _ in range(50)]
# num_workers=0
loader = DataLoader(Rows(400), batch_size=8)
# tensors
loader = DataLoader(TensorDataset(torch.rand(640, 16), torch.rand(640, 4)), batch_size=64)
# iterable, no worker
loader = DataLoader(Stream(), batch_size=8)
# generator
loader = Generated()
# sampler
sampler = torch.utils.data.WeightedRandomSampler(torch.ones(400), 400)
loader = DataLoader(Rows(400), batch_size=8, sampler=sampler)
# workers
loader = DataLoader(Rows(4000, @load@), batch_size=8, num_workers=@workers@)
# persistent
loader = DataLoader(Rows(160, @load@), batch_size=8, num_workers=@workers@, persistent_workers=True)
# iterable
loader = DataLoader(Stream(@load@), batch_size=8, num_workers=@workers@)
# pinned
loader = DataLoader(Rows(4000, @load@), batch_size=8, num_workers=@workers@, pin_memory=True)
# collate
loader = DataLoader(Rows(4000, @load@), batch_size=8, num_workers=@workers@, collate_fn=collate)
# prefetch
loader = DataLoader(Rows(4000, @load@), batch_size=8, num_workers=@workers@, prefetch_factor=6)
# no batches
loader = DataLoader(Batches(500), batch_size=None, num_workers=1)
# uneven
loader = DataLoader(Rows(4000, @load@, every=97), batch_size=8, num_workers=2, prefetch_factor=4)
# two
loader = Zipped(DataLoader(Rows(400), batch_size=8), DataLoader(Rows(400), batch_size=8, **kept))
# by turns
loader = Chained(DataLoader(Rows(80), batch_size=8), DataLoader(Rows(80), batch_size=8, **kept))
"""
_SMALL = 5  # the first ones do not wait in steps of a few milliseconds either
_EVALUATION = """
# none
pass
# own loader
model.eval()
with torch.no_grad():
    for x, y in validation:
        model(x)
        pause(own)
model.train()
# inference
with torch.inference_mode():
    for x, y in validation:
        model(x)
        pause(own / 2)
# cache
torch.cuda.empty_cache()
with torch.no_grad():
    for x, y in validation:
        model(x)
# saved
torch.save(model.state_dict(), "/dev/null")
pause(0.2)
"""
_STEP = """
# plain
optimizer.zero_grad()
lossof(x, y).backward()
optimizer.step()
# accumulated
(lossof(x, y) / @accumulate@).backward()
if n % @accumulate@ == 0:
    optimizer.step()
    optimizer.zero_grad()
# clipped
optimizer.zero_grad(set_to_none=False)
lossof(x, y).backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
scheduler.step()
# closure
def closure():
    optimizer.zero_grad()
    loss = lossof(x, y)
    loss.backward()
    return loss
optimizer.step(closure)
# two optimizers
optimizer.zero_grad()
lossof(x, y).backward()
optimizer.step()
second.zero_grad()
other(x).mean().backward()
second.step()
# scaler
optimizer.zero_grad()
scaler.scale(lossof(x, y)).backward()
scaler.step(optimizer)
scaler.update()
# autocast
optimizer.zero_grad()
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = lossof(x, y)
loss.backward()
optimizer.step()
"""
_FEATURE = """
# none
pass
# anomaly once
if n == 5:
    with torch.autograd.detect_anomaly():
        lossof(x, y).backward()
# profiled once
if n == 10:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        lossof(x, y)
# collected
if n % 50 == 0:
    gc.collect()
# printed
print(n, flush=True)
# item
float(lossof(x, y).detach().item())
"""
_HEAD = """
import collections, gc, os, sys, time, warnings
warnings.simplefilter("ignore")
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info
torch.set_num_threads(1)
own = @own@
pause = time.sleep
kept = {"num_workers": 1, "persistent_workers": True}

class Rows(Dataset):
    def __init__(self, count, seconds=0.0, every=0):
        self.count, self.seconds, self.every = count, seconds, every
    def __len__(self):
        return self.count
    def __getitem__(self, i):
        if self.seconds:
            time.sleep(self.seconds * (5 if self.every and i % self.every == 0 else 1))
        return torch.full((16,), i / self.count), torch.zeros(4)

class Stream(IterableDataset):
    def __init__(self, seconds=0.0):
        self.seconds = seconds
    def __iter__(self):
        info = get_worker_info()
        for i in range(info.id if info else 0, 4000, info.num_workers if info else 1):
            time.sleep(self.seconds)
            yield torch.full((16,), i / 4000), torch.zeros(4)

class Batches(Dataset):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, i):
        if i >= self.count:
            raise IndexError(i)
        return torch.rand(8, 16), torch.rand(8, 4)

class Zipped:
    def __init__(self, *loaders):
        self.loaders = loaders
    def __iter__(self):
        for (x, y), (z, _) in zip(*self.loaders):
            yield x + z, y

class Chained(Zipped):
    def __iter__(self):
        for loader in self.loaders:
            yield from loader

class Generated:
    def __iter__(self):
        for _ in range(500):
            yield torch.rand(8, 16), torch.rand(8, 4)

def collate(rows):
    return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])

def main():
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    other = torch.nn.Linear(16, 1)
    @parallel@
    lossof = lambda x, y: torch.nn.functional.mse_loss(model(x).float(), y)
    optimizer = torch.optim.@optimizer@(model.parameters(), lr=1e-4)
    second = torch.optim.SGD(other.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    @loader@
    validation = DataLoader(Rows(80), batch_size=8, num_workers=@validation@)
    begin = last = time.monotonic()
    n, waits = 0, collections.deque(maxlen=100_000)
    while True:
        for x, y in loader:
            now = time.monotonic()
            waits.append((now, now - last))
            n += 1
            pause(own)
            @step@
            @feature@
            if n % @every@ == 0:
                @evaluation@
            last = time.monotonic()
            @stop@

if __name__ == "__main__":
    main()
"""
_STOP = """
# 1 rank
if last - begin > @seconds@:
    waited = sum(wait for at, wait in waits if at > begin + 5) / (now - begin - 5)
    print(f"waited {waited:.3f}", flush=True)
    os._exit(0)
# 2 ranks
late = torch.tensor(float(last - begin > @seconds@))
torch.distributed.all_reduce(late)  # both stop at the same step
if late > 0:
    waited = sum(wait for at, wait in waits if at > begin + 5) / (now - begin - 5)
    print(f"waited {waited:.3f}", flush=True)
    os._exit(0)
"""
_PARALLEL = """
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model)
"""


def _table(text: str) -> dict[str, str]:
    """Return the texts by name."""
    parts = re.split(r"^# (.+)$", text, flags=re.MULTILINE)[1:]
    return {name: part.strip("\n") for name, part in zip(parts[::2], parts[1::2], strict=True)}


_TABLES = {"loader": _table(_LOADER), "evaluation": _table(_EVALUATION), "step": _table(_STEP)}
_TABLES |= {"feature": _table(_FEATURE)}


@dataclass(frozen=True)
class Program:
    """A drawn training, and the words of what was drawn."""

    seed: int
    name: str
    source: str
    ranks: int


def draw(seed: int) -> Program:
    """Return the program of a seed. A batch is loaded in at most half of the time of a step, so nothing waits."""
    d = random.Random(seed)
    ranks = 2 if d.random() < 0.2 else 1
    own, workers = d.choice([0.02, 0.05, 0.1, 0.3]), d.randint(1, 3)
    parts = {table: d.choice(list(of)) for table, of in _TABLES.items()}
    if parts["loader"] in list(_TABLES["loader"])[:_SMALL] and d.random() < 0.5:
        own = 0.003
    if ranks > 1 and parts["step"] == "two optimizers":
        parts["step"] = "plain"
    values = {
        "parallel": _PARALLEL.strip() if ranks > 1 else "pass",
        "stop": list(_table(_STOP).values())[ranks - 1],
        **{table: of[parts[table]] for table, of in _TABLES.items()},
        "optimizer": "LBFGS" if parts["step"] == "closure" and d.random() < 0.3 else d.choice(["SGD", "AdamW"]),
        "own": own,
        "load": round(own * d.uniform(0.05, 0.5) / 8 * workers, 5),
        "workers": workers,
        "validation": d.choice([0, 0, 1]),
        "accumulate": d.choice([2, 4, 16]),
        "every": max(20, int(d.uniform(3, 12) / own)),
        "seconds": SECONDS,
    }
    source = _HEAD
    for name in ("parallel", "stop", *_TABLES, *values):
        source = "\n".join(_filled(line, f"@{name}@", str(values[name])) for line in source.splitlines())
    words = ", ".join(f"{word}" for word in parts.values() if word not in ("none", "plain"))
    return Program(seed, f"{words}, {1e3 * own:.0f} ms{', 2 ranks' if ranks > 1 else ''}", source, ranks)


def control() -> Program:
    """Return a training whose loader takes twice as long as its step: it must be advised."""
    drawn = map(draw, range(1000))
    healthy = next(each for each in drawn if each.name.startswith("num_workers=0") and each.name.endswith(" 50 ms"))
    source = healthy.source.replace("DataLoader(Rows(400)", "DataLoader(Rows(400, own / 4)", 1)
    return Program(0, "control: it waits", source, 1)


def _filled(line: str, place: str, text: str) -> str:
    """Return a line with a place filled; the lines of a text that is the whole line get its indentation."""
    if line.strip() == place:
        return textwrap.indent(text, line[: len(line) - len(line.lstrip())])
    return line.replace(place, text)
