"""Drawn processes under the hook, as the status of the daemon describes them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from gpugauge.status.model import GpuStatus, ProcessStatus, decoded
from gpugauge.terminal.rows import Process
from gpugauge.verdict.causes import CAUSES
from gpugauge.verdict.mistakes import MISTAKES
from qa.worlds.nodes import NOW

PARTS = {
    "data": ("█", "waiting for data"),
    "peers": ("▓", "waiting for other ranks"),
    "evaluating": ("▒", "evaluating"),
    "checkpointing": ("=", "writing checkpoints"),
    "compiling": ("+", "compiling"),
    "generating": ("~", "generating"),
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
            "lost_ratio": 0.5,
            "evidence": self.main and CAUSES[self.main].evidence,
        }
        gpus = [GpuStatus(uuid=f"GPU-{index}", index=index) for index in (0, 1)]
        return Process(decoded(ProcessStatus, facts), gpus, 0.45, 60 * 2**30)


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
