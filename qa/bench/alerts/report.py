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
    """Return a row for each set of rules and group of stories."""
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
    ]
    return _table(_SUMMARY, rows)


def by_story(stories: Sequence[Story], scored: Scored) -> str:
    """Return a row for each story: the expected alerts, and the result of each set of rules."""
    names = [rules.name for rules, _ in scored]
    rows = []
    for story in stories:
        wanted = (
            ", ".join(
                sorted(
                    {in_words(expectation.labels, story) for expectation in story.expectations if expectation.required}
                )
            )
            or "nobody"
        )
        results = [_result(story, scores["all"]) for _, scores in scored]
        rows.append((story.name, story.group, story.description, wanted, *results))
    return _table(("story", "group", "what happens", "expected alerts", *names), rows)


def in_words(labels: Mapping[str, str], story: Story) -> str:
    """Return labels in words; a GPU by its index and node in place of its uuid."""
    uuid = labels.get("uuid", "")
    if uuid in story.devices:
        others = [name for name, device in story.devices.items() if device.instance == story.devices[uuid].instance]
        return f"GPU {others.index(uuid)} of {story.devices[uuid].instance}"
    job = labels.get("workload_job")
    return f"job {job}" if job else " ".join(labels.values())


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


def _result(story: Story, score: Score) -> str:
    wanted = sum(expectation.required for expectation in story.expectations)
    missed = sum(name == story.name for name, _ in score.missed)
    wrong = len({identity for name, identity, _ in score.wrong if name == story.name})
    parts = [f"reported {wanted - missed} of {wanted}"] if wanted else []
    parts += [f"{wrong} false"] if wrong else []
    return ", ".join(parts) or "quiet"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return table([cell.replace("|", "\\|") for cell in head], cells, ["---"] * len(head))
