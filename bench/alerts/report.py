"""What comes of scoring, as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.alerts.score import NAIVE, Rules, Score
from bench.alerts.story import Story

Scored = Sequence[tuple[Rules, Mapping[str, Score]]]
_SUMMARY = (
    *("rules", "stories", "told, of those to be told", "false alarms", "precision", "recall"),
    *("of the tells about low use", "minutes until told: median", "longest", "cause named"),
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
            f"{s.told} of {s.told + len(s.missed)}",
            str(s.false_alarms),
            _share(s.precision),
            _share(s.recall),
            f"{s.low_use_told} of {s.low_use}",
            "-" if s.delay is None else f"{s.delay:g}",
            str(max(s.delays)) if s.delays else "-",
            f"{s.named} of {s.nameable}" if rules.names_jobs else "-",
        )
        for rules, scores in scored
        for group, s in scores.items()
    ]
    return _table(_SUMMARY, rows)


def by_story(stories: Sequence[Story], scored: Scored) -> str:
    """Return a row for each story: who should be told, and what each set of rules made of it."""
    names = [rules.name for rules, _ in scored]
    rows = []
    for story in stories:
        wanted = ", ".join(sorted({who(tell.who, story) for tell in story.tells if tell.required})) or "nobody"
        results = [_result(story, scores["all"]) for _, scores in scored]
        rows.append((story.name, story.group, story.what, wanted, *results))
    return _table(("story", "group", "what happens", "to be told about", *names), rows)


def who(labels: Mapping[str, str], story: Story) -> str:
    """Return labels in words; a GPU by its place, since its uuid says nothing."""
    uuid = labels.get("uuid", "")
    if uuid in story.devices:
        others = [name for name, device in story.devices.items() if device.instance == story.devices[uuid].instance]
        return f"GPU {others.index(uuid)} of {story.devices[uuid].instance}"
    job = labels.get("workload_job_id")
    return f"job {job}" if job else " ".join(labels.values())


def failures(story_score: Score) -> list[str]:
    """Return a line for each false alarm and for each that did not come."""
    return [
        *(f"false alarm in {story}: {alert} about {who}" for story, who, alert in sorted(set(story_score.wrong))),
        *(f"not told in {story}: {who}" for story, who in story_score.missed),
    ]


def _result(story: Story, score: Score) -> str:
    wanted = sum(tell.required for tell in story.tells)
    missed = sum(name == story.name for name, _ in score.missed)
    wrong = len({who for name, who, _ in score.wrong if name == story.name})
    parts = [f"told {wanted - missed} of {wanted}"] if wanted else []
    parts += [f"{wrong} false"] if wrong else []
    return ", ".join(parts) or "quiet"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
