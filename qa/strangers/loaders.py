"""Ways to get batches. `setup` creates the loader, `loop` runs `@body@` for each batch `x` of an epoch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Loader:
    """A part of a program. `@item@` is the time that an item takes, `@count@` the batches of an epoch."""

    name: str
    setup: str
    loop: str
    weight: float = 1.0
    unknown: str = ""


MAP = """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * @count@
    def __getitem__(self, index):
        time.sleep(@item@)
        return torch.full((8,), float(index % 5))
"""
STREAM = """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        number, of = (info.id, info.num_workers) if info else (0, 1)
        for index in range(number, 2 * @count@, of):
            time.sleep(@item@)
            yield torch.ones(8) * index
"""
STREAMED = "loader = torch.utils.data.DataLoader(Stream(), batch_size=2)"
OWN = """
def samples():
    for index in range(@count@):
        time.sleep(@item@)
        yield torch.randn(2, 8)
"""
FOR = "for x in truth.each(loader):\n    @body@"
ROWS = "for row in truth.each(loader, sized=False):\n    x = row[None]\n    @body@"
UNSIZED = FOR.replace("loader", "loader, sized=False")
NEXT = """
truth.ask()
iterator = iter(loader)
while True:
    try:
        x = next(iterator)
    except StopIteration:
        truth.stop()
        break
    truth.got(samples=len(x))
    @body@
    truth.ask()
"""
WINDOWS = """
iterator, ended = iter(loader), False
while not ended:
    window = []
    for _ in range(@ahead@):
        truth.ask()
        x = next(iterator, None)
        if x is None:
            truth.stop()
            ended = True
            break
        truth.got(samples=len(x))
        window.append(x)
    for x in window:
        model.train()
        @body@
"""
WITHOUT_GRAD = """
iterator = iter(loader)
while True:
    truth.ask()
    with torch.no_grad():
        x = next(iterator, None)
    if x is None:
        truth.stop()
        break
    truth.got(samples=len(x))
    @body@
"""
PREFETCH = """
def prefetch(target, source):
    for item in source:
        target.put(item)
    target.put(None)
"""
PREFETCHED = """
source = queue.Queue(maxsize=4)
feeder = threading.Thread(target=prefetch, args=(source, loader), daemon=True)
feeder.start()
while True:
    truth.ask(known=False)
    x = source.get()
    truth.got()
    if x is None:
        break
    @body@
feeder.join()
"""
QUEUED = """
source = queue.Queue(maxsize=2)
feeder = threading.Thread(target=prefetch, args=(source, samples()), daemon=True)
feeder.start()
while True:
    @wait@
        with truth.waited():
            x = source.get()
    if x is None:
        break
    @body@
feeder.join()
"""
NESTED = """
class Chunks(torch.utils.data.Dataset):
    inner = torch.utils.data.DataLoader(list(torch.randn(8, 4)), batch_size=2)
    def __len__(self):
        return 2 * @count@
    def __getitem__(self, index):
        time.sleep(@item@)
        return torch.cat([part.flatten()[:4] for part in list(self.inner)[:2]])
loader = torch.utils.data.DataLoader(Chunks(), batch_size=2)
"""
CUT = """
for i, x in enumerate(truth.each(loader)):
    @body@
    if i + 2 >= @count@ // 2:
        break
"""
RAISING = """
class Flaky(torch.utils.data.Dataset):
    fails = [3]
    def __len__(self):
        return 2 * @count@
    def __getitem__(self, index):
        time.sleep(@item@)
        if index in self.fails:
            self.fails.clear()
            raise OSError("the file server is away")
        return torch.randn(8)
loader = torch.utils.data.DataLoader(Flaky(), batch_size=2)
"""
RETRIED = """
for attempt in range(2):
    try:
        for x in truth.each(loader):
            @body@
        break
    except OSError as error:
        print("again:", error)
"""
TWO = """
labelled = torch.utils.data.DataLoader(Rows(), batch_size=2)
unlabelled = torch.utils.data.DataLoader(Rows(), batch_size=2)
"""
ZIPPED = """
both = iter(zip(labelled, unlabelled))
while True:
    truth.ask()
    pair = next(both, None)
    if pair is None:
        truth.stop()
        break
    truth.got(samples=len(pair[0]) + len(pair[1]))
    x = pair[0] + pair[1]
    @body@
"""
FIRST = """
class Cold(torch.utils.data.Dataset):
    warm = False
    def __len__(self):
        return 2 * @count@
    def __getitem__(self, index):
        time.sleep(@item@ if self.warm else 2.5)
        self.warm = True
        return torch.randn(8)
loader = torch.utils.data.DataLoader(Cold(), batch_size=2, shuffle=True)
"""
FOREVER = """
def forever(loader):
    while True:
        yield from loader
endless = forever(loader)
"""
TURNS = """
for turn in range(@count@):
    truth.ask()
    x = next(endless)
    truth.got(samples=len(x))
    @body@
"""
AGAIN = """
for turn in range(@count@):
    truth.ask()
    x = next(iter(loader))
    truth.got(samples=len(x))
    @body@
"""
BAR = """
class Bar:
    def __init__(self, inner):
        self.inner = inner
    def __len__(self):
        return len(self.inner)
    def __iter__(self):
        for number, item in enumerate(self.inner):
            self.shown = number / len(self)
            yield item
"""
TRANSFORMING = """
class Augmenting(torch.utils.data.DataLoader):
    def __iter__(self):
        for item in super().__iter__():
            time.sleep(@item@)
            yield item + 0.1
"""
MEMORY = "data = torch.randn(2 * @count@, 8)"
SLICES = "for i in torch.randperm(@count@).tolist():\n    x = data[2 * i:2 * i + 2]\n    @body@"
EMPTY = """
empty = torch.utils.data.DataLoader(Rows(), batch_size=10 ** 6, drop_last=True)
print(len(empty), list(truth.each(empty)))
"""


def _map(options: str) -> str:
    return MAP + f"loader = torch.utils.data.DataLoader(Rows(), {options})\n"


def _queued(call: str) -> str:
    return QUEUED.replace("@wait@", f"with gpugauge.hook.{call}:")


LOADERS = (
    Loader("workers 0", _map("batch_size=2"), FOR, 2),
    Loader("shuffled", _map("batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(3)"), NEXT),
    Loader("workers 1", _map("batch_size=2, num_workers=1"), FOR),
    Loader("workers 2", _map("batch_size=2, num_workers=2, prefetch_factor=4"), NEXT),
    Loader("persistent", _map("batch_size=2, num_workers=1, persistent_workers=True"), FOR),
    Loader("stream", STREAM + STREAMED, FOR),
    Loader("stream, worker", STREAM + STREAMED.replace("2)", "2, num_workers=1)"), NEXT),
    Loader("windows", _map("batch_size=2"), WINDOWS, 2),
    Loader("windows, worker", _map("batch_size=2, num_workers=1"), WINDOWS),
    Loader("without gradients", _map("batch_size=2, shuffle=True"), WITHOUT_GRAD, 2, unknown="first"),
    Loader("no batches", _map("batch_size=None"), ROWS),
    Loader("sampler", _map("batch_sampler=[[2 * i, 2 * i + 1] for i in range(@count@)]"), FOR),
    Loader("collate", _map("batch_size=2, collate_fn=lambda rows: torch.stack(rows) * 2"), FOR),
    Loader("nested", NESTED, FOR),
    Loader("own", OWN, "for x in truth.each(samples(), known=False):\n    @body@", 2),
    Loader("declared", OWN, UNSIZED.replace("loader", "gpugauge.hook.batches(samples())"), 2),
    Loader("declared list", OWN + "loader = gpugauge.hook.batches(list(samples()))\n", UNSIZED),
    Loader("waiting", OWN + PREFETCH, _queued("waiting()"), unknown="batches"),
    Loader("phase load", OWN + PREFETCH, _queued('phase("load")'), unknown="batches"),
    Loader("prefetch", PREFETCH + _map("batch_size=2"), PREFETCHED, 2, unknown="batches"),
    Loader("memory", MEMORY, SLICES),
    Loader("whole", MEMORY, "for i in range(@count@):\n    x = data\n    @body@"),
    Loader("empty", _map("batch_size=2") + EMPTY, FOR),
    Loader("cut", _map("batch_size=2"), CUT),
    Loader("cut, workers", _map("batch_size=2, num_workers=1"), CUT),
    Loader("retried", RAISING, RETRIED),
    Loader("zipped", MAP + TWO, ZIPPED, unknown="batches"),
    Loader("cold", FIRST, FOR),
    Loader("endless", _map("batch_size=2") + FOREVER, TURNS),
    Loader("again", _map("batch_size=2"), AGAIN, 0.5),
    Loader("wrapped", _map("batch_size=2") + BAR, "for x in truth.each(Bar(loader)):\n    @body@"),
    Loader("read ahead", _map("batch_size=2"), "for x in list(truth.each(loader)):\n    @body@"),
    Loader("transforming", MAP + TRANSFORMING + "loader = Augmenting(Rows(), batch_size=2)\n", FOR),
)  # fmt: skip
