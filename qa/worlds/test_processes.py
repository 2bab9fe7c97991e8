"""One process on one screen: drawn processes, whose truth is what was drawn."""

from __future__ import annotations

import functools
import random
import re
from itertools import pairwise

import pytest
from tests.drawn import seeds

from gpugauge.terminal.columns import cells
from gpugauge.terminal.process import apportion, process_screen
from gpugauge.verdict.causes import CAUSES
from gpugauge.verdict.mistakes import MISTAKES
from qa.worlds.nodes import NOW
from qa.worlds.processes import PARTS, drawn

SEEDS = range(300)


@functools.cache
def screen(seed: int, width: int) -> list[str]:
    return process_screen(drawn(seed).process(), NOW, width, colour=False)


def plain(text: str) -> str:
    """Return a text without the blanks at which it may be wrapped."""
    return re.sub(r"\s+", "", text)


@seeds(SEEDS)
def test_everything_is_shown_and_fits(seed: int) -> None:
    process = drawn(seed)
    for width in (40, 80, 120, 200):
        lines = screen(seed, width)
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
def test_each_gain_is_that_of_its_change(seed: int) -> None:
    process = drawn(seed)
    most = re.compile(
        r" +→ ((?:steps )?up to 2(?:\.2)? times as (?:fast|many samples/s)"
        r"|the gain is not decided.*|its steps stay.*|the cause is.*)"
    )
    lines = [line for line in screen(seed, 120) if not re.fullmatch(most, line)]
    undecided = len(screen(seed, 120)) - len(lines)

    factors = [
        float(found)
        for line in lines
        for found in re.findall(r"→ (?:steps )?(?:about [\d.]+|up) to ([\d.]+) times", line)
    ]
    known = sorted((1.2 * gain for gain in process.gains.values() if gain), reverse=True)
    assert sorted(factors, reverse=True) == [pytest.approx(gain, rel=0.05) for gain in known]
    assert undecided == len(process.gains) - len(known)


@seeds(SEEDS)
def test_the_bar_has_the_shares(seed: int) -> None:
    process = drawn(seed)
    for width in (40, 80, 200):
        lines = screen(seed, width)
        if max(process.shares.get(part, 0.0) for part in ("rest", "running")) > 0.99:
            continue  # the thread runs, too, while it waits for its GPU
        bar = lines[lines.index("Where a step goes") + 1]
        legend = " ".join(lines[lines.index("Where a step goes") + 2 :])

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
