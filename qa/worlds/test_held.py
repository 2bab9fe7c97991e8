"""The GPUs that a process holds: what it loses on its own does not depend on contexts that it has elsewhere."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.drawn import seeds
from tests.simulation import Moment, moments, scenario

from gpugauge.verdict.savings import LEAST_SHARE

SECONDS = 90


@dataclass(frozen=True)
class Rank:
    """A rank that works on the GPU of its number. `stray`: it has a context on GPU 0, too; `spare`: GPUs that it holds
    and nobody uses.
    """

    number: int
    pipeline: str
    hook: bool
    stray: bool = False
    spare: tuple[int, ...] = ()

    def line(self, *, alone: bool) -> str:
        """Return the process of a scenario, `alone` without what it holds beside its own GPU."""
        held = sorted({self.number, *(() if alone else (*self.spare, *([0] if self.stray else [])))})
        return (
            f"  - {{pid: {100 + self.number}, gpus: {held}, works_on: [{self.number}], memory: 1GiB, "
            f"hook: {str(self.hook).lower()}, pipeline: {self.pipeline}, command: python3 train.py, "
            f"cgroup: /job{self.number}}}"
        )


def drawn(seed: int) -> list[Rank]:
    chance = random.Random(seed)
    count, spares = chance.randint(2, 4), list(range(4, 8))
    ranks = []
    for number in range(count):
        kernels = chance.choice([0.1, 0.25])
        host = kernels * chance.choice([0.2, 0.9, 1.2, 2.5])
        load = kernels * chance.choice([0.5, 0.8, 3.0])
        hook = chance.random() < 0.7
        ranks.append(
            Rank(
                number,
                f"{{kernels: {kernels}, host: {host}, load: {load}, workers: {chance.choice([1, 4])}}}",
                hook,
                hook and number > 0 and chance.random() < 0.7,
                tuple(spares.pop() for _ in range(chance.choice([0, 0, 1, 3])) if spares),
            )
        )
    return ranks


def found(ranks: list[Rank], folder: Path, *, alone: bool) -> Moment:
    lines = ["gpus: {model: h100, count: 8}", "processes:", *(rank.line(alone=alone) for rank in ranks)]
    *_, last = moments(scenario("\n".join(lines)), folder, SECONDS)
    return last


def lost(moment: Moment, pid: int) -> tuple[float, dict[str, float]]:
    """Return the seconds that a process held GPUs, and those that it lost, by cause."""
    (process,) = {labels[0] for labels in moment.samples["gpu_process_host_info"] if str(pid) in labels}
    of_causes = moment.samples.get("training_lost_seconds_total", {})
    causes = {labels[1]: float(value) for labels, value in of_causes.items() if labels[0] == process}  # type: ignore[arg-type]  # numbers
    return float(moment.samples["training_gpu_held_seconds_total"][(process,)]), causes  # type: ignore[arg-type]  # likewise


@pytest.mark.everything
@pytest.mark.timeout(600)  # all seeds are one test
@seeds(range(10))
def test_what_is_lost_is_that_of_the_own_gpu_and_of_unused_ones(seed: int, tmp_path: Path) -> None:
    ranks = drawn(seed)
    whole, alone = (found(ranks, tmp_path / str(by), alone=by) for by in (False, True))

    for rank in ranks:
        (held, causes), (own, expected) = (lost(moment, 100 + rank.number) for moment in (whole, alone))
        # What is a context only, and what is unused, is known after the first readings of the load.
        assert held == pytest.approx(own * (1 + len(rank.spare)), abs=8.0), rank
        assert causes.pop("unused_gpus") == pytest.approx(own * len(rank.spare), rel=0.1), rank
        for cause, seconds in causes.items():
            # A cause that takes less than LEAST_SHARE of all GPUs is left out.
            least = LEAST_SHARE * (1.2 + len(rank.spare)) if not seconds else 0.05
            assert seconds == pytest.approx(expected[cause], abs=least * own), (rank, cause)


@pytest.mark.parametrize("hook", [True, False])
def test_of_a_gpu_without_a_load_nothing_is_known(hook: bool, tmp_path: Path) -> None:
    text = (
        "gpus:\n  - {model: a100, mig: [{profile: 3g.40gb, count: 2}]}\nprocesses:\n"
        f"  - {{pid: 100, gpus: [0], instance: 0, memory: 6GiB, hook: {str(hook).lower()}, pipeline: {{load: 1.6}}, "
        "command: python3 train.py, cgroup: /job}"
    )
    *_, last = moments(scenario(text), tmp_path, SECONDS)
    held, causes = lost(last, 100)

    assert (held, sum(causes.values())) == (0.0, 0.0)
