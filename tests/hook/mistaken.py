"""Trainings with drawn mistakes under the hook, in one process: prints what was planted, and the facts of each.

It takes the seed and the number of trainings. The clock of the snapshots is that of the trainings, not of the machine.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import sys
import threading
import types
import warnings
from collections.abc import Callable, Mapping

from gpugauge.hook import arming

LATE = "late" in sys.argv
os.environ[arming.SWITCH_VARIABLE] = "1"  # the bootstrap has found it switched off
if not LATE:
    arming.arm()
import torch  # noqa: E402 - after the hook, or before it
from torch.autograd import detect_anomaly, set_detect_anomaly  # noqa: E402 - after the hook

arming.arm()
from gpugauge.hook import install  # noqa: E402 - after the hook

SECOND = 1_000_000_000
STEPS = 36  # three in each second
CPUS = len(os.sched_getaffinity(0))


def within(context: Callable[[], contextlib.AbstractContextManager[object]], step: Callable[[], None]) -> None:
    with context():
        step()


def _enter() -> None:
    with detect_anomaly(check_nan=False):
        pass


# As torch.compile does for each graph, without a compilation, which leaves autocast unknown.
traced = types.FunctionType(_enter.__code__, {"__name__": "torch._functorch", "detect_anomaly": detect_anomaly})


class Training:
    """A training with some mistakes, each entered in a drawn way. `truth` are the names of those that it makes, and
    `settings` the facts that are not mistakes.
    """

    def __init__(self, draw: random.Random) -> None:
        self.truth: set[str] = set()
        self.around = contextlib.ExitStack()
        self.backward: Callable[[Callable[[], None]], None] = lambda run: run()
        self.each: list[Callable[[int], object]] = []
        anomaly = draw.choice(
            ["none", "none", "set", "around", "backward", "flag", "thread", "once", "disabled", "traced"]
        )
        profiler = draw.choice(["none", "none", "torch", "legacy", "schedule"])
        cache = draw.choice(["none", "none", "each", "memory", "often", "rare"])
        autocast = draw.choice(["none", "forward", "around", "decorator", "evaluation", "disabled", "once"])
        self.ways = [anomaly, profiler, cache, autocast]
        self.forward: Callable[[Callable[[], None]], None] = lambda run: run()
        self.settings: dict[str, str] = {"autocast": "yes" if autocast in ("forward", "around", "decorator") else "no"}
        self._autocast(autocast)
        self._set(draw)
        self._detect_anomaly(anomaly, draw)
        self._profile(profiler)
        self._empty_cache(cache)
        threads = draw.choice([1, CPUS, CPUS + 1, 3 * CPUS])
        torch.set_num_threads(threads)
        if threads > max(1, CPUS):
            self.truth.add("too_many_threads")

    def _detect_anomaly(self, anomaly: str, draw: random.Random) -> None:
        if anomaly in ("set", "thread"):
            start = threading.Thread(target=torch.autograd.set_detect_anomaly, args=(True,))
            start.start() if anomaly == "thread" else set_detect_anomaly(True)
            if anomaly == "thread":
                start.join()
        elif anomaly == "around":
            self.around.enter_context(detect_anomaly())
        elif anomaly in ("backward", "flag", "disabled"):
            enter = {
                "backward": detect_anomaly,
                "flag": lambda: set_detect_anomaly(mode=True),
                "disabled": lambda: set_detect_anomaly(False),
            }[anomaly]
            self.backward = lambda run: within(enter, run)
        elif anomaly == "once":
            once = draw.randrange(STEPS)
            self.each.append(lambda step: within(detect_anomaly, lambda: None) if step == once else None)
        elif anomaly == "traced":
            self.each.append(lambda step: traced() if step % 2 else None)
        if anomaly not in ("none", "once", "disabled", "traced"):
            self.truth.add("anomaly_detection")

    def _profile(self, profiler: str) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if profiler == "torch":
            self.around.enter_context(torch.profiler.profile(activities=activities))
        elif profiler == "legacy":
            self.around.enter_context(torch.autograd.profiler.profile())
        elif profiler == "schedule":
            schedule = torch.profiler.schedule(wait=6, warmup=2, active=2, repeat=1)
            found = self.around.enter_context(torch.profiler.profile(activities=activities, schedule=schedule))
            self.each.append(lambda _: found.step())
        if profiler in ("torch", "legacy"):
            self.truth.add("profiler")

    def _autocast(self, autocast: str) -> None:
        enter = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16)
        if autocast == "around":
            self.around.enter_context(enter())
        elif autocast == "forward":
            self.forward = lambda run: within(enter, run)
        elif autocast == "decorator":
            self.forward = lambda run: enter()(run)()
        elif autocast == "disabled":
            self.forward = lambda run: within(lambda: enter(enabled=False), run)
        elif autocast == "evaluation":
            self.each.append(lambda _: torch.no_grad()(lambda: within(enter, lambda: None))())
        elif autocast == "once":
            self.each.append(lambda step: within(enter, lambda: None) if step == STEPS // 2 else None)

    def _set(self, draw: random.Random) -> None:
        """Set algorithms, which a program can need."""
        for name, change in (
            ("deterministic", torch.use_deterministic_algorithms),
            ("cudnn_benchmark", functools.partial(setattr, torch.backends.cudnn, "benchmark")),
            ("cudnn_deterministic", functools.partial(setattr, torch.backends.cudnn, "deterministic")),
        ):
            on = draw.random() < 0.5
            change(on)
            self.settings[name] = "yes" if on else "no"
        batches = draw.choice(["cpu", "meta"])
        batch = torch.ones(1, 4, device=batches)
        self.batch: object = draw.choice([batch, {"a": ["text", batch]}, ("text", (1, batch))])
        self.settings["batch_device"] = batches

    def _empty_cache(self, cache: str) -> None:
        every = {"each": 1, "memory": 1, "often": 2, "rare": 12}.get(cache)
        if every:
            owner = torch.cuda.memory if cache == "memory" else torch.cuda
            self.each.append(lambda step: owner.empty_cache() if step % every == 0 else None)
            if every <= 2:
                self.truth.add("empty_cache")

    def run(self) -> Mapping[str, str]:
        """Return the facts after the training."""
        assert install.observer is not None
        state = install.observer.state
        state.clear()
        # The observer publishes nothing itself, by the clock of the machine.
        install.observer.record.step_due = install.observer.record.batch_due = install.observer.publish_due = 1 << 62
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        facts: Mapping[str, str] = {}
        losses: list[torch.Tensor] = []
        with self.around:
            for step in range(STEPS):
                if step % 3 == 2:
                    state.take_batch(self.batch)
                self.forward(lambda: losses.append(model(torch.ones(1, 4)).sum()))
                self.backward(losses.pop().backward)
                optimizer.step()
                for act in self.each:
                    act(step)
                state.update(step * SECOND // 3)
                if step % 3 == 2:
                    facts = state.snapshot("s", step, 0, step * SECOND // 3).facts
        torch.autograd.set_detect_anomaly(False)
        return facts


def main() -> None:
    """Run the trainings."""
    warnings.simplefilter("ignore")
    draw = random.Random(int(sys.argv[1]))
    for _ in range(int(sys.argv[2])):
        training = Training(draw)
        facts = training.run()
        print(
            json.dumps(
                {"truth": sorted(training.truth), "ways": training.ways, "settings": training.settings, "facts": facts}
            )
        )


if __name__ == "__main__":
    main()
