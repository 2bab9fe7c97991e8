"""The row of what to do about each cause, whose words change seldom enough for a label."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from gpugauge.faults.repair import Site
from gpugauge.metric import Metric, Table
from gpugauge.node.node import Node

_SECONDS = 15.0  # for which the figures of a text stay at least
_MOST_SECONDS = 3600.0  # and at most: a long training has few series
_LOOK_SECONDS = 30.0  # for which the texts are not made again where nothing else was concluded: 0.5 ms a process
_DIGITS = re.compile(r"(?<!rank )(?<!GPU )(?<!doctor )(?<![\d.])[\d.]+")  # not those that name something

Texts = Mapping[str, str]  # by cause


_texts = Table[Texts]("process")
ADVICE: tuple[Metric, ...] = (
    TEXT := _texts.gauge(
        "training_advice_info",
        "What to do about a cause, in the words of status and page; always 1. Its figures are at most an hour old, and "
        "less while the training is young.",
        lambda texts: dict.fromkeys(texts.items(), 1),
        *("cause", "advice"),
    ),
)


class _Kept(NamedTuple):
    text: str
    first: float  # monotonic
    since: float


class Advices:
    """The advice on processes. New words are taken at once; new figures after as long as the cause is known: each text
    is a series of its own.
    """

    def __init__(self, site: Callable[[], Site]) -> None:
        self._site = site
        self._kept: dict[tuple[str, str], _Kept] = {}  # by process and cause
        self._found: dict[str, tuple[object, float, Texts]] = {}  # by process: what was concluded, when, and the texts

    def of(self, node: Node, failed: dict[str, str]) -> dict[str, Texts]:
        """Return the texts by process and cause, of the processes that lose time or could gain some. `failed` gets the
        error of a process, which costs the others nothing.
        """
        devices = defaultdict[str, list[str]](list)
        for process, uuid in node.uses:
            devices[process].append(uuid)
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] in node.judged}
        self._found = {process: found for process, found in self._found.items() if process in node.judged}
        return {process: self._texts(process, devices[process], node, failed) for process in sorted(node.judged)}

    def _texts(self, process: str, devices: Collection[str], node: Node, failed: dict[str, str]) -> Texts:
        from gpugauge.status.advice import by_cause  # noqa: PLC0415  (loaded for the first training)

        judged = node.judged[process]
        verdict, loader = judged.verdict, judged.loader
        limits = loader and (loader.reason, loader.workers)
        concluded = judged.early, verdict.state, verdict.limited_by, tuple(judged.gains), limits
        before = self._found.get(process)
        if before and before[0] == concluded and node.monotonic - before[1] < _LOOK_SECONDS:
            return before[2]
        try:
            found = by_cause(process, devices, node, self._site())
        except Exception as error:  # noqa: BLE001  (the caller logs it)
            failed[process] = f"{type(error).__name__}: {error}"
            return {}
        texts = {cause: self._steady((process, cause), text, node.monotonic) for cause, text in found.items()}
        self._found[process] = concluded, node.monotonic, texts
        return texts

    def _steady(self, key: tuple[str, str], text: str, now: float) -> str:
        kept = self._kept.get(key) or _Kept(text, now, now)
        stay = min(_MOST_SECONDS, max(_SECONDS, kept.since - kept.first))
        if _DIGITS.sub("", text) != _DIGITS.sub("", kept.text) or (text != kept.text and now - kept.since >= stay):
            kept = _Kept(text, kept.first, now)
        self._kept[key] = kept
        return kept.text
