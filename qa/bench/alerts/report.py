"""The scores as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qa.bench.alerts.score import NAIVE, Rules, Score
from qa.bench.alerts.story import Story
from qa.bench.document import table

Scored = Sequence[tuple[Rules, Mapping[str, Score]]]
_SUMMARY = (
    *("rules", "stories", "reported, of those expected", "false alarms", "twice", "precision", "recall"),
    *("of the reports about low use", "minutes until reported: median", "longest", "cause named"),
)


def summary(stories: Sequence[Story], scored: Scored) -> str:
    """Return a row for each set of rules, and for ours one for each group of stories."""
    sizes = {"all": len(stories)}
    for story in stories:
        sizes[story.group] = sizes.get(story.group, 0) + 1
    rows = [
        (
            f"`{rules.name}`" if rules.name in NAIVE else rules.name,
            f"{group} ({sizes[group]})",
            f"{s.fired} of {s.fired + len(s.missed)}",
            str(s.false_alarms),
            str(len(s.twice)) if rules.names_jobs else "-",
            _share(s.precision),
            _share(s.recall),
            f"{s.low_use_fired} of {s.low_use}",
            "-" if s.delay is None else f"{s.delay:g}",
            str(max(s.delays)) if s.delays else "-",
            f"{s.named} of {s.nameable}" if rules.names_jobs else "-",
        )
        for rules, scores in scored
        for group, s in scores.items()
        if group == "all" or rules.names_jobs
    ]
    return _table(_SUMMARY, rows)


def failures(story_score: Score) -> list[str]:
    """Return a line for each false alarm and for each missed alert."""
    return [
        *(
            f"false alarm in {story}: {alert} about {identity}"
            for story, identity, alert in sorted(set(story_score.wrong))
        ),
        *(f"two alerts at a time in {story}: {identity}" for story, identity in sorted(story_score.twice)),
        *(f"not reported in {story}: {identity}" for story, identity in story_score.missed),
    ]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return table([cell.replace("|", "\\|") for cell in head], cells, ["---"] * len(head))
