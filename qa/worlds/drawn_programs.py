"""Training programs drawn by a seed, under the hook, in simulated time: each runs in a fork of this process, with the
torch that is installed, and what the hook sends of it is recorded.
"""

from __future__ import annotations

import gc
import io
import json
import os
import random
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from importlib import import_module
from itertools import islice
from typing import Any

from qa.worlds.recorded import Record

_START_NS, _UNIX = 10**12, 1.7e9
_SECONDS = 100.0  # at most, of one program
_OPS = 36
# What differs between machines, and what is of the moment.
_FACTS_OF_MACHINE = {
    *("cpus", "ranks_on_cpus", "torch_threads", "architectures", "cuda", "driver_cuda", "cudnn", "device_nodes"),
    *("visible_devices", "kernel_driver", "cuda_visible_devices", "build", "tf32_matmul", "tf32_cudnn"),
}
_LEFT_OUT = {"v", "session", "facts"}
_PHASES = (
    *(
        "train",
        "eval",
        "val",
        "test",
        "checkpoint",
        "save",
        "compile",
        "load",
        "generate",
        "rollout",
        " Sampling ",
        "x",
    ),
    *("warmup", "data", "saving", "validating", "fit", "generation", "evaluation", "loading", "starting", "other"),
)


class _Clock:
    """Time passes in sleep() alone."""

    now = _START_NS

    def monotonic(self) -> int:
        return self.now

    def unix(self) -> float:
        return _UNIX + (self.now - _START_NS) / 1e9

    def sleep(self, seconds: float) -> None:
        self.now += round(1e9 * seconds)


class _Client:
    """Keeps what the hook sends; `up` is whether a daemon is there."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.up, self.connected = True, False

    def connect(self, _: int, hello: Callable[[], tuple[bytes, int | None]]) -> bool:
        if self.up and not self.connected:
            self.sent.append(json.loads(hello()[0]))
        self.connected = self.up
        return self.up

    def send(self, _: int, data: bytes) -> bool:
        self.connected &= self.up
        if self.connected:
            self.sent.append(json.loads(data))
        return self.connected

    def close(self) -> None:
        self.connected = False

    leave = close

    def listen(self, _: object) -> bool:
        return False


class _Program:
    """A program with models, optimizers and loaders; each operation is a part of what programs do."""

    def __init__(self, seed: int, clock: _Clock, client: _Client, model: Any) -> None:
        import torch  # noqa: PLC0415 - seconds, and the tests without torch do not import it

        import gpugauge.hook  # noqa: PLC0415  # in the fork
        from gpugauge.hook import install  # noqa: PLC0415  # in the fork

        self.torch, self.hook, self.dice, self.clock, self.client = (
            torch,
            gpugauge.hook,
            random.Random(seed),
            clock,
            client,
        )
        assert install.observer
        self.observer = install.observer
        torch.manual_seed(seed)
        self.model, self.head = model, torch.nn.Linear(3, 2)
        self.optimizers: list[Any] = []
        self.most = 1 if seed % 4 < 2 else 3  # with a single one most steps take the short way
        self._loader: Any = None

    def run(self) -> Iterator[tuple[str, str]]:
        """Yield what the hook has counted and sent after each operation."""
        words = len(self.observer.record.words)
        ops = (
            *(self.train, self.train, self.train, self.accumulate, self.evaluate, self.save, self.phase, self.tick),
            *(self.declare, self.create, self.drop, self.by_hand, self.elsewhere, self.alternate, self.autocast),
            *(self.gradients, self.state, self.vanish, self.error, self.pause, self.load_only, self.generator),
        )
        self.create()
        for number in range(_OPS):
            op = self.dice.choice(ops)
            op()
            record = self.observer.record
            yield "words", f"{number} {op.__name__} {list(record.words)[: words - 1]}"
            yield (
                "phase",
                f"{number} {record.phase} {record.base} {record.entered} {record.within} {record.sole is None}",
            )
            for message in self._sent():
                yield from ((f"{message['kind']}.{key}", f"{number} {value}") for key, value in message.items())
        self.observer.end_session(self.dice.choice(("finished", "error")))
        for message in self._sent():
            yield from ((f"{message['kind']}.{key}", f"end {value}") for key, value in message.items())
        self.observer.leave()  # what the program does now is not watched
        self.train()
        yield "words", f"left {list(self.observer.record.words)[: words - 1]}"
        yield from (("sent after the end", str(message)) for message in self._sent())

    def _sent(self) -> Iterator[dict[str, Any]]:
        sent, self.client.sent = self.client.sent, []
        for message in sent:
            if message["kind"] == "hello":
                yield {"kind": "hello", "sequence": message["sequence"]}
                continue
            facts = {k: v for k, v in (message.get("facts") or {}).items() if k not in _FACTS_OF_MACHINE}
            if loader := message.get("loader"):  # its seconds are of the CPU
                message["loader"] = {name: loader.get(name) for name in ("batches", "measured", "epochs", "starts")}
            yield {k: v for k, v in message.items() if k not in _LEFT_OUT} | {f"facts {k}": v for k, v in facts.items()}

    def _wait(self, most: float = 0.75) -> None:
        """Let parts of a second pass whose sums are exact: what is due after a second meets it at its exact value."""
        self.clock.sleep(self.dice.choice((0.0, 1 / 32, 1 / 32, 0.25, most)))

    def _batches(self, number: int) -> Iterator[Any]:
        torch, program = self.torch, self

        class Data(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]  # torch has no types
            def __len__(self) -> int:
                return 64

            def __getitem__(self, index: int) -> Any:
                if index % 4 == 0:
                    program._wait(3 / 16)
                return torch.ones(4) * index

        if self._loader is None or self.dice.random() < 0.2:
            size = self.dice.choice((1, 4, 8, None))
            self._loader = torch.utils.data.DataLoader(Data(), batch_size=size, pin_memory=False)
        yield from islice(self._loader, number)

    def _backward(self, batch: Any) -> None:
        self.head(self.model(batch)).sum().backward()
        self._wait(0.125)

    def _step(self, optimizers: list[Any]) -> None:
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def train(self) -> None:
        for batch in self._batches(self.dice.randint(1, 12)):
            self._backward(batch)
            self._step(self.optimizers)

    def accumulate(self) -> None:
        for number, batch in enumerate(self._batches(9)):
            self._backward(batch)
            if number % 3 == 2:
                self._step(self.optimizers[:1])

    def alternate(self) -> None:
        for number, batch in enumerate(self._batches(self.dice.randint(2, 8))):
            self._backward(batch)
            if self.optimizers:
                self._step([self.optimizers[number % len(self.optimizers)]])

    def evaluate(self) -> None:
        part = self.dice.choice((self.model, self.head))
        with self.torch.no_grad() if self.dice.random() < 0.7 else nullcontext():
            part.eval() if self.dice.random() < 0.7 else None
            for batch in self._batches(self.dice.randint(1, 6)):
                self.model(batch)
                self._wait()
        if self.dice.random() < 0.8:
            part.train()

    def save(self) -> None:
        self._wait()
        self.torch.save({"a": self.torch.ones(1)}, _Slow(self))

    def phase(self) -> None:
        with self.hook.phase(self.dice.choice(_PHASES)):
            self._wait()
            self.dice.choice((self.train, self.evaluate, self._wait, self.load_only))()

    def tick(self) -> None:
        values: tuple[Any, ...] = (
            None,
            0,
            8,
            2.5,
            -1,
            "x",
            1 << 60,
            self.torch.tensor(32),
            self.torch.ones(2),
            float("nan"),
            True,
        )
        for _ in range(self.dice.randint(1, 4) if self.dice.random() < 0.3 else 0):
            self.hook.tick(self.dice.choice(values), self.dice.choice(values))
            self._wait()
        stated: tuple[Any, ...] = (1e12, -1, "x", float("nan"), 1e30, 0, 5)
        self.hook.flops(self.dice.choice(stated))

    def declare(self) -> None:
        for batch in self.hook.batches(self._slowly(self.dice.randint(1, 6))):
            if self.dice.random() < 0.3:
                with self.hook.waiting():
                    self._wait()
            self._backward(batch)
            self._step(self.optimizers)
        with self.hook.waiting():
            self._wait()

    def _slowly(self, number: int) -> Iterator[Any]:
        for _ in range(number):
            self._wait(3 / 16)
            yield self.torch.ones(2, 4)

    def create(self) -> None:
        kinds = self.torch.optim.SGD, self.torch.optim.Adam
        part = self.dice.choice((self.model, self.head))
        if len(self.optimizers) < self.most:
            self.optimizers.append(self.dice.choice(kinds)(part.parameters(), lr=0.01))

    def drop(self) -> None:
        if len(self.optimizers) > 1:
            self.optimizers.pop(self.dice.randrange(len(self.optimizers)))
            gc.collect()

    def by_hand(self) -> None:
        """Train as a compiled optimizer does, which calls no hooks."""
        for batch in self._batches(self.dice.randint(3, 6)):
            self._backward(batch)
            with self.torch.no_grad():
                for parameter in (*self.model.parameters(), *self.head.parameters()):
                    parameter.add_(0.01)

    def elsewhere(self) -> None:
        if self.dice.random() < 0.4:
            thread = threading.Thread(target=self.dice.choice((self.train, self.evaluate, self.load_only)))
            thread.start()
            thread.join()

    def autocast(self) -> None:
        dtype = self.dice.choice((self.torch.bfloat16, self.torch.float16))
        with self.torch.autocast("cpu", dtype=self.torch.bfloat16), suppress(RuntimeError):
            self.observer.state.set_autocast(dtype)
            self.train()

    def gradients(self) -> None:
        inputs = self.dice.choice((list(self.model.parameters()), self.torch.ones(4, requires_grad=True)))
        first = inputs if isinstance(inputs, self.torch.Tensor) else self.torch.ones(4)
        for _ in self._batches(2):
            self.torch.autograd.grad(self.head(self.model(first)).sum(), inputs)
            self._wait()

    def state(self) -> None:
        self.model.to(self.dice.choice((self.torch.float64, self.torch.float32)))
        self.head.to(self.model.weight.dtype)
        self._loader, default = None, self.torch.float32
        self.model.to(default), self.head.to(default)

    def vanish(self) -> None:
        self.client.up = not self.client.up or self.dice.random() < 0.3
        self._wait(3.0)

    def error(self) -> None:
        if self.dice.random() < 0.3:
            with suppress(ZeroDivisionError):
                for batch in self._batches(2):
                    self._backward(batch)
                    _ = 1 / 0
        if self.dice.random() < 0.1:
            self.observer.evaluated = weakref.ref(self.model)

    def pause(self) -> None:
        self.clock.sleep(self.dice.choice((1.0, 10.0, 11.0, 60.0)))

    def load_only(self) -> None:
        for _ in self._batches(self.dice.randint(1, 3)):
            self._wait()

    def generator(self) -> None:
        generate = self.hook.phase("generate")(self._slowly)
        for _ in generate(2):
            self._wait()


class _Slow(io.BytesIO):
    """A file that takes its time."""

    def __init__(self, program: _Program) -> None:
        super().__init__()
        self._program = program

    def write(self, data: Any) -> int:
        self._program.clock.sleep(1 / 16)
        return super().write(data)


def _in_child(seed: int) -> list[tuple[str, str]]:
    clock, client = _Clock(), _Client()
    vars(time)["sleep"] = clock.sleep
    import torch  # noqa: PLC0415  # only where it is installed

    from gpugauge.hook import install, watch, workers  # noqa: F401, PLC0415  # in the fork; workers patch torch

    torch.set_num_threads(1)
    gc.freeze()  # a collection is of what the program makes
    for name, module in list(sys.modules.items()):
        if name.startswith("gpugauge.hook") and hasattr(module, "CLOCKS"):
            vars(module)["CLOCKS"] = (clock.monotonic, clock.unix)
    vars(install)["Client"] = lambda _: client
    os.environ["GPUGAUGE_HOOK"] = "1"
    if seed % 4 == 0:
        os.environ["GPUGAUGE_HOOK_COUNT_FLOPS"] = "1"
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 3)
    early = [torch.optim.SGD(model.parameters(), lr=0.01)] if seed % 3 == 0 else []  # before the hook
    install.install(announce=seed % 2 == 0)
    program = _Program(seed, clock, client, model)
    program.optimizers += early
    return list(program.run())


def _shown_of(seed: int) -> Iterator[tuple[str, str]]:
    import_module("torch._dynamo")  # else each child would import it with its first optimizer
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            found = _in_child(seed)
            with os.fdopen(writing, "w", encoding="utf-8") as pipe:
                json.dump(found, pipe)
        except BaseException:  # noqa: BLE001 - the child must not go on with the tests
            traceback.print_exc()
        os._exit(0)
    os.close(writing)
    timer = threading.Timer(_SECONDS, os.kill, (pid, 9))
    timer.start()
    with os.fdopen(reading, encoding="utf-8") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    timer.cancel()
    yield from json.loads(text or '[["the program", "failed"]]')


RECORD = Record("drawn_programs", _shown_of, 12)
