"""Trainings with a planted fault and without it: `python -m qa.bench.gpu.trainings CAUSE MODEL`.

It builds both steps, prints a line of JSON, and reads words from its input: `bad` and `good` train until the next word
and print the steps a second, `end` ends. A model that does not fit into the memory is halved until it does.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

DEVICE = os.environ.get("BENCH_DEVICE", "cuda")
ON_GPU = DEVICE == "cuda"
_WARM_SECONDS = 0.7  # of each part, in which no steps are counted
_LEAST_SCALE = 1 / 32
_AHEAD = 8  # steps after which the host waits for the GPU
_MICRO = 8  # parts into which `underfilled` divides a batch
_COPIED = 10e9  # bytes per second of memory that is not pinned, about
Step = Callable[[], None]
Pair = tuple[Step, Step]
"""The step with the fault, and without it."""


class Batches(IterableDataset[Any]):  # type: ignore[misc]  # torch is Any to mypy
    """Yields one batch again and again; loading it takes `seconds`."""

    def __init__(self, batch: Any, seconds: float = 0.0) -> None:
        self.batch, self.seconds = batch, seconds

    def __iter__(self) -> Iterator[Any]:
        while True:
            time.sleep(self.seconds)
            yield self.batch


class Residual(nn.Module):  # type: ignore[misc]  # torch is Any to mypy
    """A convolution beside its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x: Any) -> Any:
        """Return the output."""
        return x + self.norm(self.conv(functional.relu(x)))


class Block(nn.Module):  # type: ignore[misc]  # torch is Any to mypy
    """A layer of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """Return the output."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second(x))))


@dataclass
class Work:
    """A model with its optimizer and a batch on the host."""

    model: Any
    batch: Any
    optimizer: Any

    def backward(self, x: Any) -> Any:
        """Compute the gradients, and return the loss."""
        loss = self.model(x).float().square().mean()
        loss.backward()
        return loss

    def step(self, x: Any) -> Any:
        """Train on a batch, and return the loss."""
        self.optimizer.zero_grad()
        loss = self.backward(x)
        self.optimizer.step()
        return loss

    def sized(self, share: float) -> Any:
        """Return a part of the batch: of images their side, of texts their length."""
        if self.batch.dim() == 4:
            side = max(4, int(self.batch.shape[-1] * share))
            return self.batch[..., :side, :side].contiguous()
        return self.batch[:, : max(4, int(self.batch.shape[1] * share))].contiguous()


def work(name: str, scale: float, width: int | None = None, *, half: bool = True, batch: int | None = None) -> Work:
    """Return a model that fills a large GPU at a scale of 1, or with a width of its own; in bfloat16 with `half`."""
    dtype = torch.bfloat16 if half and DEVICE == "cuda" else torch.float32  # slow on a CPU
    if name == "conv":
        wide = width or int(256 * max(0.125, scale))
        layers = (nn.Conv2d(3, wide, 3, padding=1), *(Residual(wide) for _ in range(6)))
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 100))
        model = model.to(DEVICE, dtype, memory_format=torch.channels_last)
        data = torch.randn(batch or max(2, int(256 * scale)), 3, *[32 if ON_GPU else 8] * 2, dtype=dtype)
    else:
        wide = width or int(1024 * max(0.125, scale))
        model = nn.Sequential(nn.Embedding(4096, wide), *(Block(wide) for _ in range(8)), nn.Linear(wide, 256))
        model = model.to(DEVICE, dtype)
        data = torch.randint(4096, (batch or max(2, int(32 * scale)), 512 if ON_GPU else 32))
    return Work(model, data, torch.optim.AdamW(model.parameters(), lr=1e-6, fused=DEVICE == "cuda"))


def loader(batch: Any, seconds: float = 0.0, workers: int = 0, *, pinned: bool = False) -> Iterator[Any]:
    """Return the batches of a loader."""
    return iter(DataLoader(Batches(batch, seconds), batch_size=None, num_workers=workers, pin_memory=pinned and ON_GPU))


def training(w: Work, batches: Iterator[Any], *, after: Step | None = None, pinned: bool = True) -> Step:
    """Return a step of an ordinary training, with something `after` it."""

    def step() -> None:
        w.step(next(batches).to(DEVICE, non_blocking=pinned))
        if after:
            after()

    return step


def took(step: Step) -> float:
    """Return the seconds of a step."""
    for _ in range(3):
        step()
    synchronize()
    begin = time.monotonic()
    for _ in range(5):
        step()
    synchronize()
    return (time.monotonic() - begin) / 5


def synchronize() -> None:
    """Wait for the GPU, if the training uses it."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def healthy(name: str, scale: float) -> Pair:
    """Nothing is planted, and the workers are fast."""
    w = work(name, scale)
    step = training(w, loader(w.batch, workers=2, pinned=True))
    return step, step


def data_loading(name: str, scale: float) -> Pair:
    """A worker that takes three times as long as the step."""
    w = work(name, scale)
    good = training(w, loader(w.batch, workers=2, pinned=True))
    return training(w, loader(w.batch, 3.0 * took(good), 1, pinned=True)), good


def host_bound(name: str, scale: float) -> Pair:
    """Python code after each step of the conv net; of the transformer many small kernels, cured by a CUDA graph."""
    if name == "conv":
        w = work(name, scale)
        good = training(w, loader(w.batch, pinned=True))
        seconds = 3.0 * took(good)

        def spin() -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                sum(range(200))

        return training(w, loader(w.batch, pinned=True), after=spin), good
    w = work(name, scale, width=256, batch=4)
    w.batch = w.batch[:, :64].contiguous()
    slow = torch.optim.AdamW(w.model.parameters(), lr=1e-6, foreach=False)
    batches = loader(w.batch.to(DEVICE))

    def bad() -> None:
        slow.zero_grad()
        w.backward(next(batches)).item()
        slow.step()

    if not ON_GPU:
        return bad, training(w, batches)
    graphed = torch.cuda.make_graphed_callables(w.model, (w.batch.to(DEVICE),))
    return bad, training(Work(graphed, w.batch, w.optimizer), batches)


def waiting_elsewhere(name: str, scale: float) -> Pair:
    """The training thread sleeps in code of its own."""
    w = work(name, scale)
    good = training(w, loader(w.batch, pinned=True))
    seconds = 3.0 * took(good)
    return training(w, loader(w.batch, pinned=True), after=lambda: time.sleep(seconds)), good


def transfer(name: str, scale: float) -> Pair:
    """Batches with large features in memory that is not pinned."""
    w = work(name, scale)
    seconds = took(training(w, loader(w.batch)))
    size = int(min(2e9, 3.0 * seconds * _COPIED)) if ON_GPU else 1 << 16
    features = torch.ones(size, dtype=torch.uint8)

    def with_features(x: Any, *, pinned: bool) -> Step:
        batches = loader((w.batch, x))

        def step() -> None:
            batch, more = next(batches)
            moved = more.to(DEVICE, non_blocking=pinned)
            w.step(batch.to(DEVICE, non_blocking=pinned))
            del moved

        return step

    return with_features(features, pinned=False), with_features(
        features.pin_memory() if ON_GPU else features, pinned=True
    )


def underfilled(name: str, scale: float) -> Pair:
    """Small parts of a batch one after another, each a CUDA graph; cured by one graph of the whole batch."""
    w = work(name, scale, width=64 if name == "conv" else 256, batch=_MICRO)
    w.batch = w.sized(0.5 if name == "conv" else 0.25).to(DEVICE)
    parts = w.batch.chunk(_MICRO)
    models = {}
    for size in (1, _MICRO):
        one = (w.batch[:size].clone(),)
        models[size] = torch.cuda.make_graphed_callables(w.model, one) if ON_GPU else w.model
        w.model = models[size]
        w.model.zero_grad()

    def step_with(model: Any, inputs: Any) -> Step:
        batches, one = loader(inputs), Work(model, None, w.optimizer)

        def step() -> None:
            one.optimizer.zero_grad()
            for x in next(batches):
                one.backward(x)
            one.optimizer.step()

        return step

    return step_with(models[1], parts), step_with(models[_MICRO], (w.batch,))


def precision_unused(name: str, scale: float) -> Pair:
    """Products of 32 bits; cured by TF32."""
    w = work(name, scale, half=False)

    def step_with(precision: str) -> Step:
        inner = training(w, loader(w.batch, workers=2, pinned=True))

        def step() -> None:
            torch.set_float32_matmul_precision(precision)
            torch.backends.cudnn.allow_tf32 = precision == "high"
            inner()

        return step

    return step_with("highest"), step_with("high")


def memory_pressure(name: str, scale: float) -> Pair:
    """Batches of other sizes each time in little memory: the allocator frees its cache to retry; cured by memory."""
    w, draw = work(name, scale), random.Random(1)
    sizes = [w.sized(0.5 + 0.5 * i / 32).to(DEVICE) for i in range(33)]
    full, cap, limit = 1.0, 1.0, [0.0]
    if ON_GPU:
        w.step(sizes[-1])
        torch.cuda.reset_peak_memory_stats()
        w.step(sizes[-1])
        cap = 1.1 * torch.cuda.max_memory_allocated() / torch.cuda.get_device_properties(0).total_memory

    def sizes_of(share: float) -> Step:
        batches = loader(sizes)

        def step() -> None:
            if ON_GPU and limit[0] != share:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                torch.cuda.set_per_process_memory_fraction(min(1.0, share))
                limit[0] = share
            w.step(draw.choice(next(batches)))

        return step

    return sizes_of(cap), sizes_of(full)


def offloaded(name: str, scale: float) -> Pair:
    """The optimizer works on the CPU with parameters of its own."""
    w = work(name, scale)
    good = training(w, loader(w.batch, pinned=True))
    own = [p.detach().float().cpu().requires_grad_() for p in w.model.parameters()]
    optimizer, batches = torch.optim.AdamW(own, lr=1e-6), loader(w.batch, pinned=True)

    def bad() -> None:
        w.model.zero_grad()
        w.backward(next(batches).to(DEVICE, non_blocking=True))
        for mine, p in zip(own, w.model.parameters(), strict=True):
            mine.grad = p.grad.float().cpu()
        optimizer.step()
        with torch.no_grad():
            for mine, p in zip(own, w.model.parameters(), strict=True):
                p.copy_(mine)

    return bad, good


def model_on_cpu(name: str, _: float) -> Pair:
    """The model was never moved."""
    global DEVICE  # noqa: PLW0603  (of this program)
    DEVICE = "cpu"
    torch.set_num_threads(2)
    w = work(name, _LEAST_SCALE, width=64)
    step = training(w, loader(w.batch[:2]), after=lambda: time.sleep(0.02))
    return step, step


CAUSES: Mapping[str, Callable[[str, float], Pair]] = {
    function.__name__: function
    for function in (
        healthy,
        data_loading,
        host_bound,
        waiting_elsewhere,
        transfer,
        underfilled,
        precision_unused,
        memory_pressure,
        offloaded,
        model_on_cpu,
    )
} | {"contention": healthy, "cpu_limited": healthy, "no_visible_device": model_on_cpu}
"""The last ones are planted from outside."""


def fitted(make: Callable[[float], Pair], scale: float) -> tuple[Pair, float]:
    """Return the steps that fit into the memory, and their scale. Raises OutOfMemoryError if none does."""
    while True:
        try:
            pair = make(scale)
            for step in pair:
                for _ in range(3):
                    step()
            synchronize()
        except torch.OutOfMemoryError:
            if scale <= _LEAST_SCALE:
                raise
        else:
            return pair, scale
        # Outside of the handler, whose traceback holds the tensors.
        scale /= 2
        if torch.cuda.is_initialized():
            torch.cuda.set_per_process_memory_fraction(1.0)
            torch.cuda.empty_cache()


def trained(step: Step, asked: Callable[[], bool]) -> dict[str, float]:
    """Train until something is asked for; return the steps a second."""
    began = begin = time.monotonic()
    counted = 0
    for steps in itertools.count(1):
        step()
        warm = time.monotonic() < began + _WARM_SECONDS or steps < 2
        if warm or steps % _AHEAD == 0:
            synchronize()
        if warm:
            begin, counted = time.monotonic(), steps
        elif asked():
            synchronize()
            end = time.monotonic()
            return {"begin": begin, "end": end, "steps": steps - counted, "rate": (steps - counted) / (end - begin)}
    raise AssertionError


def told(part: str, **facts: Any) -> None:
    """Print a line."""
    print(json.dumps({"part": part, "at": time.monotonic()} | facts), flush=True)


def main() -> None:
    """Train as the words of the input say."""
    cause, model = sys.argv[1:3]
    words: queue.Queue[str] = queue.Queue()

    def read() -> None:
        # Not sys.stdin: a worker that is forked while a thread reads from it waits for its lock without an end.
        while found := os.read(0, 1024):
            for word in found.decode().split():
                words.put(word)
        words.put("end")

    threading.Thread(target=read, daemon=True).start()
    told("imported", torch=torch.__version__)
    word = words.get()
    pair, scale = fitted(lambda scale: CAUSES[cause](model, scale), 1.0 if ON_GPU else _LEAST_SCALE)
    told("built", scale=scale)
    while word != "end":
        told(word, **trained(pair[word == "good"], lambda: not words.empty()))
        word = words.get()
    os._exit(0)  # workers need not deliver the rest


if __name__ == "__main__":
    main()
