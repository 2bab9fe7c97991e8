"""One process on one screen: drawn processes, whose truth is what was drawn."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from gpugauge.status.advice import Exported, Subject, advice_of
from gpugauge.terminal.columns import cells
from gpugauge.terminal.process import apportion, process_screen
from gpugauge.terminal.screen import Process
from gpugauge.verdict.causes import CAUSES
from gpugauge.verdict.loaders import SLOW_BATCHES
from gpugauge.verdict.mistakes import MISTAKES
from tests.drawn import seeds
from tests.status.test_advice import diagnosed

NOW = 1.7e9
SEEDS = range(300)
PARTS = {
    "data": ("█", "waiting for data"),
    "peers": ("▓", "waiting for other ranks"),
    "evaluating": ("▒", "evaluating"),
    "checkpointing": ("=", "writing checkpoints"),
    "rest": ("░", "the rest"),
}
NAMES = ("train.py", "x" * 90, "训练.py", "\x1b[2Jevil", "a b c.py", "🚀" * 30)


@dataclass
class Drawn:
    """A process under the hook. `gains` are the factors without each cause; None is not decided."""

    name: str
    shares: dict[str, float]
    main: str | None
    gains: dict[str, float | None] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    def process(self) -> Process:
        """Return it as the status of the daemon describes it."""
        changes: list[dict[str, Any]] = [
            {
                "cause": cause,
                "topic": "limit",
                "change": CAUSES[cause].advice,
                "gain": gain and {"expected": gain, "lower": gain * 0.9, "upper": gain * 1.2, "next": "gpu"},
            }
            for cause, gain in self.gains.items()
        ]
        changes += [
            {"cause": None, "topic": mistake.name, "change": mistake.change, "gain": None}
            for mistake in MISTAKES
            if mistake.name in self.mistakes
        ]
        facts = {
            "process": "0123456789ab",
            "pid": 4711,
            "command": self.name,
            "workload": {"user": "ann"},
            "hook": True,
            "role": "training",
            "state": "training",
            "state_words": "training",
            "level": "poor",
            "started": NOW - 3700,
            "step_seconds": 0.412,
            "last_step": NOW - 1,
            "phase": "training",
            "step_shares": self.shares,
            "limited_by": self.main,
            "changes": changes,
            "undecidable": [],
            "limited_by_words": self.main and "is slow",
            "limited_by_ratio": 0.5,
            "evidence": self.main and CAUSES[self.main].evidence,
        }
        return Process(facts, [{"index": 0}, {"index": 1}], 0.45, 60 * 2**30)


def drawn(seed: int) -> Drawn:
    """Return a process with this number."""
    dice = random.Random(seed)
    named = dice.sample(sorted(PARTS.keys() - {"rest"}), dice.randint(0, 4))
    weights = {part: dice.choice((0.0, 0.001, 0.02, 0.3, 1.0, 3.0)) for part in named} | {"rest": dice.uniform(0.01, 3)}
    shares = {part: weight / sum(weights.values()) for part, weight in weights.items()}
    causes = dice.sample(sorted(CAUSES), dice.randint(0, 4))
    gains = {cause: dice.choice((None, round(dice.uniform(1.05, 300), 2))) for cause in causes}
    mistakes = dice.sample([mistake.name for mistake in MISTAKES], dice.choice((0, 0, 1, 2)))
    return Drawn(dice.choice(NAMES), shares, causes[0] if causes else None, gains, mistakes)


def plain(text: str) -> str:
    """Return a text without the blanks at which it may be wrapped."""
    return re.sub(r"\s+", "", text)


@seeds(SEEDS)
def test_everything_is_shown_and_fits(seed: int) -> None:
    process = drawn(seed)
    for width in (40, 80, 120, 200):
        lines = process_screen(process.process(), NOW, width, colour=False)
        shown = plain("".join(lines))

        assert max(map(cells, lines)) <= width
        assert all(line.isprintable() for line in lines)
        assert "pid4711" in shown
        assert "GPUs0-1" in shown
        assert (f"[{process.main}]" in shown) == bool(process.main)
        assert all(plain(CAUSES[cause].advice) in shown for cause in process.gains)
        made = [mistake for mistake in MISTAKES if mistake.name in process.mistakes]
        assert all(plain(f"{mistake.name}: {mistake.evidence}→ {mistake.change}") in shown for mistake in made)
        assert ("Known mistakes" in lines) == bool(made)


@seeds(SEEDS)
def test_the_largest_gain_is_first(seed: int) -> None:
    process = drawn(seed)
    lines = process_screen(process.process(), NOW, 100, colour=False)

    factors = [float(found) for line in lines for found in re.findall(r"→ steps ([\d.]+) times as fast \(", line)]
    known = sorted((gain for gain in process.gains.values() if gain), reverse=True)
    assert factors == [pytest.approx(gain, rel=0.05) for gain in known]
    assert factors == sorted(factors, reverse=True)
    assert sum("→ the gain is not decided" in line for line in lines) == len(process.gains) - len(known)


@seeds(SEEDS)
def test_the_bar_has_the_shares(seed: int) -> None:
    process = drawn(seed)
    for width in (40, 80, 200):
        lines = process_screen(process.process(), NOW, width, colour=False)
        bar = lines[lines.index("Where a step goes") + 1]
        legend = " ".join(lines[lines.index("Where a step goes") + 2 : lines.index("What limits it") - 1])

        assert cells(bar) == width
        for part, share in process.shares.items():
            fill, words = PARTS[part]
            count, exact = bar.count(fill), share * (width - 2)
            named = share >= 0.005 or part == "rest"
            assert count == 0 if not named else abs(count - exact) < len(PARTS) or count == 1
            assert (f"{fill} {100 * share:.0f} % {words}" in " ".join(legend.split())) == named


@seeds(SEEDS)
def test_cells_of_a_bar(seed: int) -> None:
    dice = random.Random(seed)
    shares = [dice.choice((0.0, 0.001, dice.random())) for _ in range(dice.randint(1, 7))]
    width = dice.randint(7, 300)
    sizes = apportion(shares, width)

    assert sum(sizes) == width
    assert min(sizes) >= 1
    order = sorted(range(len(shares)), key=lambda i: shares[i])
    assert all(sizes[a] <= sizes[b] for a, b in pairwise(order) if shares[a] < shares[b])


def test_one_screen_of_24_lines() -> None:
    """With one cause; the most that can come together needs 40."""
    one = Drawn("train.py", {"data": 0.6, "rest": 0.4}, "data_loading", {"data_loading": 2.6})
    most = Drawn(
        "train.py",
        dict.fromkeys(PARTS, 0.2),
        "memory_swap_io",
        {"memory_swap_io": 2.6, "data_loading": 1.4, "host_bound": None},
        ["profiler", "empty_cache"],
    )

    assert len(process_screen(one.process(), NOW, 80, colour=False)) <= 18
    assert len(process_screen(most.process(), NOW, 80, colour=False)) <= 40


def changed(**facts: Any) -> str:
    process = Drawn("train.py", {}, None).process()
    return "\n".join(process_screen(Process({**process.facts, **facts}, (), None, None), NOW, 200, colour=False))


def test_what_is_not_known_is_said() -> None:
    outside = changed(hook=False, state="unknown", state_words="no hook", undecidable=["transfer"])
    assert "seen from outside only" in outside
    assert outside.count("not known without the hook") == 2
    assert "not decidable" not in outside

    young = changed(state=None)
    assert "its state is not known yet" in young
    assert "no steps in the last minute" in young

    idle = changed(state="held_idle", state_words="idle")
    assert "idle: it holds a GPU and runs nothing on it" in idle
    assert "not judged in this state" in idle

    unseen = changed(undecidable=["data_loading", "host_bound"])
    assert "not decidable here: data_loading, host_bound" in unseen
    assert "gpugauge.hook.batches()" in unseen


def test_a_training_on_the_cpu_where_there_is_no_gpu() -> None:
    gain = {"expected": 5.3, "lower": 4.7, "upper": 6.1, "next": "cpu"}
    advice = {"cause": "data_loading", "topic": "limit", "change": "more workers", "gain": gain}
    shown = changed(state="training_on_cpu", state_words="on the CPU", changes=[advice])

    assert "training on the CPU · no GPU" in shown
    assert "phase" not in shown
    assert "it waits for its data loader [data_loading]; there is no GPU here" in shown
    assert "→ steps 5.3 times as fast (4.7 to 6.1), then limited by its computation on the CPU" in shown


def test_a_number_of_workers_has_its_gain_where_that_of_all_waits_is_not_decided() -> None:
    """The row of the loader, as a process without a decided gain has it."""
    families = diagnosed(SLOW_BATCHES, 16, 15.2, "0")
    facts = {"state": "training_on_cpu", "data_wait_ratio": 0.99, "loader": {"workers": "0"}, "hook": True}
    found = advice_of(Subject("p", Exported(families), facts))
    shown = changed(state="training_on_cpu", state_words="on the CPU", changes=[advice.plain() for advice in found])

    assert "1. 16 loader workers instead of 0" in shown
    assert "→ steps 15 times as fast, then it still waits for its data loader" in shown
    assert "not decided" not in shown


def test_only_the_colours_differ() -> None:
    process = drawn(5).process()
    plain_lines, coloured = (process_screen(process, NOW, 80, colour=colour) for colour in (False, True))

    assert coloured != plain_lines
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in coloured] == plain_lines
