"""Python around a training: the frame of the whole program, and what it does to the interpreter first."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """
import contextlib, functools, io, os, queue, signal, sys, threading, time
import truth
@early@
import torch
import gpugauge.hook
torch.set_num_threads(1)
torch.manual_seed(@seed@)
@prelude@
"""


@dataclass(frozen=True)
class Frame:
    """A program: `@code@` is the training, `@ending@` the end, `@pause@` stands for computing."""

    name: str
    text: str
    weight: float
    pause: str
    extra: str  # after each update


@dataclass(frozen=True)
class Feature:
    """What a program does before its training: before it imports torch, and after it."""

    name: str
    early: str = ""
    prelude: str = ""
    weight: float = 1.0


# The training in a frame, and the end.
_FRAMES = """
# script 4
@code@
@ending@
# main 4
def main():
    @code@
    return n

if __name__ == "__main__":
    n = main()
    @ending@
# ends inside 2
def main():
    @code@
    @ending@

if __name__ == "__main__":
    main()
# asyncio 1
import asyncio
async def main():
    @code@
    return n

n = asyncio.run(main())
@ending@
# thread 1
result = []
def main():
    @code@
    result.append(n)

t = threading.Thread(target=main)
t.start()
t.join()
n = result[0]
@ending@
# pool 1
from concurrent.futures import ThreadPoolExecutor
def main():
    @code@
    return n

with ThreadPoolExecutor(1) as pool:
    n = pool.submit(main).result()
@ending@
# class 1
class Trainer:
    def __init__(self):
        self.log = []
    def fit(self):
        @code@
        return n

n = Trainer().fit()
@ending@
# generator 1
def training():
    @code@

for n in training():
    pass
@ending@
# recursion 1
def deep(k):
    if k:
        return deep(k - 1)
    @code@
    return n

n = deep(300)
@ending@
# exec 0.5
SOURCE = '''
@code@
'''
scope = dict(globals())
exec(compile(SOURCE, "cell", "exec"), scope)
n = scope["n"]
@ending@
# stack 1
import warnings
with contextlib.ExitStack() as stack:
    stack.enter_context(warnings.catch_warnings())
    stack.callback(print, "unwound")
    @code@
@ending@
# phase 0.7
n = 0
with gpugauge.hook.phase("train"), truth.within("training"):
    @code@
@ending@
# decorated 0.7
@gpugauge.hook.phase("train")
def main():
    with truth.within("training"):
        @code@
        return n

n = main()
@ending@
# finally 1
import logging
logging.basicConfig(stream=sys.stdout, format="%(message)s")
n = 0
try:
    @code@
finally:
    logging.warning("updates %d", n)
@ending@
"""


def _frames() -> tuple[Frame, ...]:
    frames = []
    for text in _FRAMES.split("\n# ")[1:]:
        title, body = text.split("\n", 1)
        name, weight = title.rsplit(" ", 1)
        pause = "await asyncio.sleep(@compute@)" if name == "asyncio" else "time.sleep(@compute@)"
        extra = "yield n" if name == "generator" else ""
        frames.append(Frame(name, HEAD + body, float(weight), pause, extra))
    return tuple(frames)


FRAMES = _frames()

LYING_CLOCK = """
_true = time.time
time.time = lambda: _true() - 86400 * (int(time.monotonic()) % 3)
"""
FINDER = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        return None
sys.meta_path = [Finder(), *sys.meta_path]
"""
ENTRY = """
import importlib
torch_module = importlib.import_module("torch")
"""
HANDLERS = """
alarms = []
def on_alarm(number, frame):
    alarms.append(number)
    if len(alarms) < 60:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGALRM, on_alarm)
signal.setitimer(signal.ITIMER_REAL, 0.05)
"""
WARNINGS = """
import warnings
warnings.simplefilter("error", UserWarning)
"""
CLOSED = "sys.stdin.close()\nos.close(0)"
DELETED = """
class Noisy:
    def __del__(self):
        self.friend = None
for _ in range(100):
    a, b = Noisy(), Noisy()
    a.friend, b.friend = b, a
"""
BATCHES_OF_5 = """
try:
    for _ in gpugauge.hook.batches(5):
        pass
except TypeError:
    print("an int is not iterable")
"""
RAISING = """
def broken():
    yield 1
    raise LookupError("the shard is gone")
try:
    for _ in truth.each(gpugauge.hook.batches(broken())):
        pass
except LookupError as error:
    print(error)
"""
PATCHED_HOOKS = """
import traceback
sys.excepthook = lambda kind, value, trace: print("caught", kind.__name__)
"""
CONFIG = """
import dataclasses
sys.setrecursionlimit(5000)
@dataclasses.dataclass
class Config:
    lr: float = 0.1
print(Config())
"""
SWALLOWED = """
for text in ("1", "x"):
    try:
        int(text)
    except Exception:
        pass
threading.excepthook = lambda args: None
"""

FEATURES = (
    Feature("none", weight=8),
    Feature("no gc", "import gc\ngc.disable()"),
    Feature("lying clock", LYING_CLOCK),
    Feature("lying clock later", "", LYING_CLOCK),
    Feature("meta path", FINDER),
    Feature("importlib", ENTRY),
    Feature("signals", "", HANDLERS),
    Feature("warnings", "", WARNINGS),
    Feature("closed stdin", CLOSED),
    Feature("del", DELETED),
    Feature("chdir", "", "os.chdir('/')"),
    Feature("excepthook", "", PATCHED_HOOKS),
    Feature("dataclass", CONFIG),
    Feature("swallowed", "", SWALLOWED),
    Feature("threads", "", "threading.Thread(target=time.sleep, args=(1.0,)).start()"),
    Feature("batches of 5", "", BATCHES_OF_5, 0.7),
    Feature("broken generator", "", RAISING, 0.7),
)
