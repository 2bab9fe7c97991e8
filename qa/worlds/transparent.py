"""What programs may notice of a hook: each part prints what it finds. Run with and without the hook by its test."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import pickle
import random
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from gpugauge.hook import phase

DICE, OTHER_DICE = random.Random(int(sys.argv[1])), random.Random()  # the other one for what depends on time


class Locked(IterableDataset):  # type: ignore[misc]  # torch has no types here
    """A data set that holds a lock as long as its iterator exists."""

    lock = threading.Lock()

    def __iter__(self) -> Iterator[Any]:
        with self.lock:
            for number in range(100):
                yield torch.tensor(float(number))


def iterators_end_with_their_loop() -> None:
    gc.disable()
    for size in DICE.sample(range(1, 5), 3):
        for number, _ in enumerate(DataLoader(Locked(), batch_size=size)):
            if number == DICE.randint(0, 3):
                break
        free = Locked.lock.acquire(timeout=1)
        print("lock is free:", free)
        Locked.lock = threading.Lock()
    gc.enable()


class Held:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.ones(2)


def datasets_end_with_their_loader() -> None:
    gc.disable()
    data = Held()
    ended = weakref.ref(data)
    loader = DataLoader(data, batch_size=2)
    for _ in loader:
        pass
    del data, loader
    print("data set is gone:", ended() is None)
    gc.enable()


class Norm(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(2)


class Frozen(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        for part in self.modules():
            if isinstance(part, torch.nn.BatchNorm1d):
                part.training = False
        return self


class Student(Norm, Frozen):
    pass


def classes_of_the_program_stay() -> None:
    order = [Norm().eval, Student().eval, Student().train]
    DICE.shuffle(order)
    for call in order:
        call()
    student = Student()
    student.train()
    print(
        "norm trains:",
        student.norm.training,
        [name for kind in (Norm, Student) for name in vars(kind) if "train" in name],
    )
    print(len(pickle.dumps(Norm.train)) > 0)
    original: Any = torch.nn.Module.train

    def patched(self: Any, mode: bool = True) -> Any:
        print("patched", mode)
        return original(self, mode)

    torch.nn.Module.train = patched
    student.train(DICE.random() < 0.5)
    torch.nn.Module.train = original


class Counter:
    """An iterator with a length and a state."""

    def __init__(self, most: int) -> None:
        self.most, self.at, self.scale = most, 0, 1

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.at >= self.most:
            raise StopIteration
        self.at += 1
        return torch.tensor([float(self.at * self.scale)])

    def __len__(self) -> int:
        return self.most - self.at


class Own(DataLoader):  # type: ignore[misc]  # torch has no types here
    def __iter__(self) -> Any:
        return Counter(9)


class Generated(DataLoader):  # type: ignore[misc]  # torch has no types here
    def __iter__(self) -> Any:
        for number in range(9):
            got = yield torch.tensor([float(number)])
            if got:
                print("got", got)


def iterators_of_the_program_stay() -> None:
    loader: Any = Own([0] * 9)
    iterator = iter(loader)

    def scale() -> None:
        iterator.scale = DICE.randint(2, 9)

    actions: list[Callable[[], object]] = [
        lambda: len(iterator),
        lambda: isinstance(iterator, Counter),
        lambda: next(iterator).item(),
        lambda: next(copy.copy(iterator)).item(),
        lambda: next(copy.deepcopy(iterator)).item(),
        lambda: next(pickle.loads(pickle.dumps(iterator))).item(),
        lambda: next(iterator).item(),
        lambda: sorted(vars(iterator).items()),
        lambda: bool(iterator),
        lambda: hasattr(iterator, "nothing"),
        scale,
    ]
    for action in DICE.choices(actions, k=14):
        print(action())
    file = io.BytesIO()
    torch.save({"iterator": iterator}, file)
    print(b"gpugauge" in file.getvalue())
    generated: Any = iter(Generated([0]))
    print(next(generated), generated.send("a value"), hasattr(generated, "__len__"))
    generated.close()
    print(list(generated))


def generators_as_phases_are_generators() -> None:
    @phase(DICE.choice(["load", "eval", "checkpoint"]))
    def numbers(most: int) -> Generator[Any, Any, str]:
        try:
            for number in range(most):
                try:
                    got = yield number
                except KeyError as error:
                    got = repr(error)
                print("got", got)
        finally:
            print("closed")
        return "result"

    def outer() -> Any:
        print((yield from numbers(2)))

    generator = numbers(9)
    next(generator)
    for _ in range(4):
        print(generator.send(DICE.random()) if DICE.random() < 0.5 else generator.throw(KeyError(1)))
    generator.close()
    print(list(outer()))
    failing = numbers(1)
    next(failing)
    try:
        failing.throw(ValueError("of the caller"))
    except ValueError as error:
        print(error)


class Preempted(Exception):  # noqa: N818 - as programs call it
    pass


def errors_of_signal_handlers_arrive() -> None:
    raised = caught = 0

    def handler(*_: object) -> None:
        nonlocal raised
        raised += 1
        raise Preempted

    class Nothing(torch.optim.Optimizer):  # type: ignore[misc]  # torch has no types here
        def step(self, _closure: Any = None) -> Any:
            pass

    optimizer = Nothing(torch.nn.Linear(1, 1).parameters(), {})
    loader = DataLoader(torch.zeros(1, 1), batch_size=None, sampler=itertools.repeat(0))
    signal.signal(signal.SIGALRM, handler)
    iterator = iter(loader)
    # The first time torch imports modules, and catches all errors of that.
    next(iterator)
    optimizer.step()

    def interrupted() -> bool:
        before = raised
        try:
            signal.setitimer(signal.ITIMER_REAL, OTHER_DICE.uniform(0.001, 0.004))
            while raised == before:
                next(iterator)
                optimizer.step()
        except Preempted:
            return True
        return False

    for _ in range(200):
        caught += interrupted()
    print("all errors arrived:", raised == caught == 200)


def warned(*_: object) -> None:
    """Warn at each level of the stack."""
    for level in range(1, 14):
        warnings.warn("planted", stacklevel=level)


class Warned(Held):
    def __getitem__(self, index: int) -> Any:
        warned()
        return torch.ones(2)

    def __reduce__(self) -> Any:
        warned()
        return Held, ()


class Sampled:
    def __iter__(self) -> Iterator[Any]:
        warned()
        return iter([[0]])


class Iterated(DataLoader):  # type: ignore[misc]  # torch has no types here
    def __iter__(self) -> Any:
        warned()
        return Counter(2)


class Switched(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    train = _apply = lambda self, *_: warned()


class Tuned(torch.optim.SGD):  # type: ignore[misc]  # torch has no types here
    def add_param_group(self, group: Any) -> None:
        warned()
        super().add_param_group(group)


class Passed(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    @staticmethod
    def forward(_: Any, value: Any) -> Any:
        return value.clone()

    @staticmethod
    def backward(_: Any, grad: Any) -> Any:
        warned()
        return grad


def warnings_keep_their_place() -> None:
    weight = torch.ones(2, requires_grad=True)
    ways: list[Callable[[], object]] = [
        lambda: next(iter(DataLoader(Warned(), batch_size=1))),
        lambda: iter(DataLoader(Held(), batch_sampler=Sampled())),
        lambda: next(iter(Iterated(Held()))),
        lambda: torch.save(Warned(), io.BytesIO()),
        lambda: Switched().eval(),
        lambda: Switched().to("cpu"),
        lambda: Switched().cuda(),
        lambda: Tuned([weight], lr=0.1),
        lambda: Passed.apply(weight).sum().backward(),
        lambda: torch.autograd.backward(Passed.apply(weight).sum()),
    ]
    DICE.shuffle(ways)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for way in ways:
            way()
    print([(Path(warning.filename).name, warning.lineno) for warning in found])


def main() -> None:
    parts = [
        iterators_end_with_their_loop,
        datasets_end_with_their_loader,
        classes_of_the_program_stay,
        iterators_of_the_program_stay,
        generators_as_phases_are_generators,
        errors_of_signal_handlers_arrive,
        warnings_keep_their_place,
    ]
    DICE.shuffle(parts)
    for part in parts:
        print("#", part.__name__, flush=True)
        part()
    sys.stdout.flush()


main()
