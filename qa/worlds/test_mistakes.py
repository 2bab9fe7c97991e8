"""Settings with drawn mistakes: each is named once, at its place, and nothing else is; durations in each spelling."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.drawn import draws, seeds

from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.options import validate as validate_rules
from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.load import load
from gpugauge.settings.options import Setting, walk
from gpugauge.settings.yaml_text import Document

SETTINGS = [setting for setting in walk() if setting.key != "simulate"]
DURATIONS = [setting for setting in SETTINGS if setting.key.endswith("_seconds")]
SPELLINGS = ("90s", "1m30s", "1.5m", "0.025h", "90000ms", "90", "90.0", "9e1")


def wrong_value(setting: Setting, draw: random.Random) -> str | None:
    """Return a value that the setting cannot have, None if it takes any text."""
    if setting in DURATIONS:
        return draw.choice(["soon", "5 parsecs", "-1", "[]", ".nan", "1h30"])
    if setting.annotation in {bool, int, float}:
        return draw.choice(["maybe", "[]", "{a: 1}"])
    return "{a: 1}"


def tree(pairs: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs.items():
        *sections, name = key.split(".")
        inner = found
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return found


def written(section: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    for name, value in section.items():
        lines += [f"{indent}{name}:", *written(value, indent + "  ")] if isinstance(value, dict) else []
        lines += [] if isinstance(value, dict) else [f"{indent}{name}: {value}"]
    return lines


@seeds(range(50))
def test_each_mistake_is_named_once_and_nothing_else_is(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    chosen = draw.sample(SETTINGS, draw.choice((1, 2, 3, 5, 9, 15)))
    wrong: dict[str, str] = {}
    for setting in chosen:
        kind = draw.choice(("value", "value", "key"))
        value = wrong_value(setting, draw)
        wrong[setting.key + ("x" if kind == "key" else "")] = "1" if kind == "key" else str(value)
    file = tmp_path / "settings.yaml"
    lines = written(tree(wrong))
    file.write_text("\n".join(lines) + "\n")
    environ = {f"GPUGAUGE_{letter}{letter}": "1" for letter in "ABC"[: draw.choice((0, 0, 1, 3))]}

    with pytest.raises(ConfigError) as raised:
        load(file, environ, {})

    sentences = str(raised.value).split("\n")
    truth = [f"{name}: unknown variable" for name in environ]
    for key in wrong:
        name = key.rpartition(".")[2]
        (number,) = (
            n for n, line in enumerate(lines, 1) if line.strip().startswith(f"{name}:") and at(lines, n) == key
        )
        truth.append(f"{file}:{number}: {key}")
    assert len(sentences) == min(len(truth), 10) + (len(truth) > 10)
    if len(truth) > 10:
        assert sentences.pop() == f"and {len(truth) - 10} more"
    for sentence in sentences:
        assert sum(sentence.startswith(known) for known in truth) == 1, sentence
    assert all(map(str.startswith, sentences, truth[: len(environ)]))


def at(lines: list[str], number: int) -> str:
    """Return the key of a line, by its indent and the lines above."""
    keys: list[str] = []
    for line in lines[:number]:
        keys[(len(line) - len(line.lstrip())) // 2 :] = [line.strip().partition(":")[0]]
    return ".".join(keys)


@seeds(draws(1, len(DURATIONS)))
def test_settings_and_rules_read_durations_alike(seed: int, tmp_path: Path) -> None:
    setting = DURATIONS[seed]
    file = tmp_path / "settings.yaml"
    section, _, name = setting.key.rpartition(".")

    def said_of(text: str, *, written: bool) -> str:
        file.write_text(f"{section}:\n  {name}: {text}\n")
        try:
            load(file if written else None, {} if written else {setting.environment: text}, {})
        except ConfigError as error:
            return str(error).rpartition(f"{setting.key}: ")[2]
        return ""

    texts = (*SPELLINGS, "soon", "5m h", "1h30")
    said = [said_of(text, written=written) for text in texts for written in (True, False)]
    high = setting.limits.get("le", 90) < 90
    assert all(high if sentence else not high for sentence in said[: 2 * len(SPELLINGS)])
    for number, text in enumerate(("soon", "5m h", "1h30")):
        sentence = f"a duration is written like 90s, 10m or 1h30m, not {text!r}"
        assert said[2 * len(SPELLINGS) + 2 * number :][:2] == [sentence] * 2
        with pytest.raises(ConfigError) as raised:
            validate_rules(Document({"patience": text}))
        assert str(raised.value) == f"patience: {sentence}"


def test_a_rule_of_90_seconds_in_each_spelling() -> None:
    for text in (*SPELLINGS, 90, 90.0):
        assert validate_rules(Document({"settle": text})) == Parameters(settle=90)
