"""Loaders that the program declares: waits and batches, the errors of the program, and processes without the hook."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpugauge.hook
from gpugauge.sessions.listener import Sessions
from gpugauge.sessions.session import Session
from gpugauge.wire import messages as wire
from tests.drawn import seeds

from .conftest import Run, finished, until

LOOP = """
import threading, time, torch, gpugauge.hook as hook
optimizer = torch.Optimizer()

def slow(number=10, seconds=0.02):
    for batch in range(number):
        time.sleep(seconds)
        yield batch

def train(batches):
    for _ in batches:
        optimizer.step()
"""


@pytest.fixture
def site(fake_torch: Path) -> str:
    return str(fake_torch)


def snap(listener: Sessions, pid: int | None = None) -> wire.Snap:
    """Return the last snapshot of the only session, or of the one of a process."""

    def found() -> list[Session]:
        return [s for s in listener.view() if pid in (None, s.hello.pid)]

    until(lambda: [s.connected for s in found()] == [False])
    (session,) = found()
    assert session.snap is not None
    assert session.snap.errors == 0
    return session.snap


@pytest.mark.parametrize(
    ("program", "batches"),
    [
        ("train(hook.batches(slow()))", 10),
        ("loader = hook.batches([1, 2, 3])\nfor _ in range(4): train(loader), time.sleep(0.05)", 12),
        ("batches = hook.batches(slow())\nwhile next(batches, None) is not None: optimizer.step()", 10),
        ("train(hook.batches(hook.batches(slow())))", 10),
        ("optimizer.step()\nfor _ in range(10):\n    with hook.waiting(): time.sleep(0.02)", 0),
        ("optimizer.step()\nfor _ in range(10):\n    with hook.phase('load'): time.sleep(0.02)", 0),
        # A loader of torch in a declared wait: its batch counts, and its time counts once.
        ("torch.Iterator.takes = 0.02\nbatches = torch.Iterator()\nfor _ in range(10):\n"
         "    with hook.waiting(): next(batches)\n    optimizer.step()", 10),
        ("torch.Iterator.takes = 0.01\nclass Slow(torch.DataLoader):\n    def __iter__(self):\n"
         "        for _, batch in zip(range(10), super().__iter__()):\n"
         "            time.sleep(0.02)\n            yield batch\n"
         "train(Slow()), train(Slow())", 20),
    ],
)  # fmt: skip
def test_declared_waits_count_once(program: str, batches: int, listener: Sessions, run: Run, site: str) -> None:
    timed = f"{LOOP}\nstart = time.monotonic()\n{program}\nprint(time.monotonic() - start)"
    slept = float(finished(run(timed, simulated=True, PYTHONPATH=site)))
    found = snap(listener)
    assert (found.batches.count if found.batches else 0) == batches
    expected = {} if "[1, 2, 3]" in program else {"training": pytest.approx(slept)}
    assert (found.waits or {}) == expected


def test_a_loader_that_is_not_declared_is_unknown(listener: Sessions, run: Run, site: str) -> None:
    finished(run(f"{LOOP}\ntrain(slow())", PYTHONPATH=site))
    found = snap(listener)
    assert (found.batches, found.waits) == (None, None)
    assert found.steps is not None
    assert found.steps.count == 10


def test_batches_of_another_thread_are_not_waits_of_the_training(listener: Sessions, run: Run, site: str) -> None:
    program = f"""
{LOOP}
import queue
ready = queue.Queue()
def prefetch(batches):
    for _ in range(10):
        ready.put(next(batches))
torch.Iterator.takes = 0.05
for batches in torch.Iterator(), hook.batches(slow()):
    thread = threading.Thread(target=prefetch, args=(iter(batches) if hasattr(batches, "__iter__") else batches,))
    thread.start()
    for _ in range(10):
        ready.get()
        optimizer.step()
    thread.join()
"""
    finished(run(program, PYTHONPATH=site))
    found = snap(listener)
    assert (found.batches, found.waits) == (None, None)


def test_the_waits_of_the_thread_that_trains_count_from_its_first_batch(
    listener: Sessions, run: Run, site: str
) -> None:
    program = f"""
{LOOP}
torch.Iterator.takes = 0.1
def work():
    batches = torch.Iterator()
    for _ in range(3):
        next(batches)
        optimizer.step()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    finished(run(program, simulated=True, PYTHONPATH=site))
    found = snap(listener)
    assert found.batches is not None
    assert found.batches.count == 3
    assert found.waits is not None
    assert dict(found.waits) == {"training": pytest.approx(0.3)}


@seeds(range(8))
def test_all_waits_of_a_thread_count_once_it_trains(seed: int, listener: Sessions, run: Run, site: str) -> None:
    # The program measures around each call itself. Its first step comes after the first batch.
    draw = random.Random(seed)
    epochs = [(draw.choice((0.0, 0.1, 0.2)), draw.choice((0.0, 0.05)), draw.randint(1, 4)) for _ in range(3)]
    program = f"""
{LOOP}
from concurrent.futures import ThreadPoolExecutor
from torch.utils.data.dataloader import DataLoader
waited = 0.0
def timed(function, argument):
    global waited
    start = time.perf_counter()
    result = function(argument)
    waited += time.perf_counter() - start
    return result
def work():
    loader = DataLoader()
    for DataLoader.starts, torch.Iterator.takes, batches in {epochs}:
        iterator = timed(iter, loader)
        for _ in range(batches):
            timed(next, iterator)
            optimizer.step()
if {draw.random() < 0.75}:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
else:
    work()
print(waited)
"""
    process = run(program, simulated=True, PYTHONPATH=site)
    waited = float(finished(process))
    found = snap(listener, process.pid)
    assert sum((found.waits or {}).values()) == pytest.approx(waited)


def test_the_program_sees_its_own_errors(run: Run, listener: Sessions, site: str) -> None:
    program = f"""
{LOOP}
class Failing:
    def __iter__(self):
        raise KeyError("mine")
def failing():
    yield 1
    raise ValueError("mine")
for bad in 5, None, Failing(), failing():
    for use in iter, next, list, len:
        expected = found = None
        try: use(bad)
        except Exception as error: expected = (type(error), error.args)
        bad = failing() if expected and expected[0] is ValueError else bad
        try: use(hook.batches(bad))
        except Exception as error: found = (type(error), error.args)
        if expected != found and use is not next: print(use, expected, found)
for bad in -1, float("nan"), "many", None, [], 1e300, True, optimizer:
    hook.tick(samples=bad, tokens=bad)
hook.step(samples=3, tokens=4.0)
hook.step(samples=3)
from gpugauge.hook import install
from gpugauge.wire.record import SAMPLES, TOKENS
words = install.observer.state.record.words
print(words[SAMPLES], words[TOKENS], install.observer.errors)
"""
    assert finished(run(program, PYTHONPATH=site)).splitlines()[-1] == "7 5 0"


def test_without_the_hook_the_functions_change_nothing() -> None:
    def numbers() -> Iterator[int]:
        yield from (1, 2)

    assert list(gpugauge.hook.batches(numbers())) == [1, 2]
    assert next(iter(gpugauge.hook.batches([3]))) == 3
    assert len(gpugauge.hook.batches([3])) == 1
    assert gpugauge.hook.batches("abc").upper() == "ABC"
    with gpugauge.hook.waiting(), pytest.raises(TypeError, match="'int' object is not iterable"):
        list(gpugauge.hook.batches(5))
    gpugauge.hook.step(samples=-1)


def test_phases_inside_and_around_a_wait_add_up(listener: Sessions, run: Run, site: str) -> None:
    # A dataset enters phases, and reads another loader; the program waits inside phases. No time counts twice.
    program = """
import random, torch, gpugauge.hook as hook
from gpugauge.hook import install
from gpugauge.wire.record import PHASES, SEQUENCE, SEQUENCE_COPY, SPENT
optimizer, batches, inner = torch.Optimizer(), torch.Iterator(), torch.Iterator()
live, named = install.observer.record, ("eval", "train", "load", "checkpoint", "other")
draw, depth, waits = random.Random(1), 0, 0
wait = type(batches).__next__.__closure__[type(batches).__next__.__code__.co_freevars.index("wait")]
def loads(iterator):
    if iterator is batches:
        anything()
    return "batch"
wait.cell_contents = loads
def anything():
    global depth, waits
    depth += 1
    for _ in range(draw.randint(0, 3 if depth < 4 else 0)):
        action = draw.randrange(5)
        if action == 0:
            optimizer.step()
        elif action in (1, 2):
            waits += 1
            next(batches if action == 1 else inner)
            waits -= 1
            # Inside another wait, the phase depends on what its dataset has left.
            assert waits or live.phase == (live.entered[-1] if live.entered else live.base)
        else:
            with hook.phase(draw.choice(named)):
                anything()
    depth -= 1
begin, since = live.since, sum(live.words[SPENT : SPENT + len(PHASES)])
for turn in range(3000):
    anything()
    words = list(live.words)
    assert words[SEQUENCE] == words[SEQUENCE_COPY], turn
    assert sum(words[SPENT : SPENT + len(PHASES)]) - since == live.since - begin, turn
    assert not live.entered and not live.within, turn
    assert live.phase == live.base != PHASES.index("loading"), turn
print(install.observer.errors)
"""
    assert finished(run(program, PYTHONPATH=site)) == "0\n"


# By module: what the hook replaces in it once the program imports it, as docs/hook.md says.
REPLACED = {
    "torch.distributed.checkpoint.state_dict_saver": "save async_save save_state_dict",
    "safetensors.torch": "save_file",
    "transformers.generation.utils": "GenerationMixin.generate",
    "transformers.modeling_utils": "PreTrainedModel.__init__ PreTrainedModel.eval",
    "deepspeed.runtime.engine": "DeepSpeedEngine.__init__ DeepSpeedEngine.step DeepSpeedEngine.save_checkpoint",
    "torch.utils.tensorboard.writer": "SummaryWriter.__init__",
    "torch.amp.grad_scaler": "GradScaler.__init__",
    "accelerate.data_loader": "DataLoaderShard.__iter__ DataLoaderDispatcher.__iter__",
    "torch.distributed._functional_collectives": "wait_tensor",
}
IMPORTS = """
import sys, types
found = []
for name, paths in REPLACED.items():
    module = sys.modules[name] = types.ModuleType(name)
    for owner, _, attribute in (path.rpartition(".") for path in paths.split()):
        holder = vars(module).setdefault(owner, type(owner, (), {})) if owner else module
        setattr(holder, attribute, lambda self=None: None)
        found.append((name, holder, attribute))
import torch
print([(name, at) for name, holder, at in found if "gpugauge" not in getattr(holder, at).__code__.co_filename])
"""


def test_each_function_of_other_packages_is_replaced(run: Run, site: str) -> None:
    assert finished(run(f"REPLACED = {REPLACED!r}\n{IMPORTS}", PYTHONPATH=site)) == "[]\n"
