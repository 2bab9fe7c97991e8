"""A labelled story for `python -m qa.bench.alerts`: the series of some hours, and the expected alerts."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

SHIPPED = Path(__file__).parent / "stories"
Kind = Literal["load", "idle", "health"]
Group = Literal["tuned", "kept back", "drawn"]


class StoryError(Exception):
    """A story is invalid; the message is one sentence that names the file and the key."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Expectation(_Strict):
    """An expected alert: it has these `labels`, is one of `alerts`, and begins between the minutes `since` and `until`.

    `cause_alert` is the alert that names the true cause. An alert that is not `required` may fire.
    """

    labels: Mapping[str, str] = Field(min_length=1)
    kind: Kind
    alerts: tuple[str, ...] = Field(min_length=1)
    cause_alert: str = ""
    since: int = Field(ge=0)
    until: int
    required: bool = True

    @model_validator(mode="after")
    def _check(self) -> Expectation:
        if self.until <= self.since:
            raise ValueError("until must come after since")
        return self


class Device(_Strict):
    """A GPU: its instance, and the jobs that hold it at some time. For the naive rules, which name no jobs."""

    instance: str
    jobs: tuple[str, ...] = ()


class Story(_Strict):
    """A story. `series` are values in promtool's notation, one for each `interval` (seconds)."""

    name: str = Field(min_length=1)
    description: str = Field(min_length=1)
    group: Group = "tuned"
    interval: Annotated[int, Field(gt=0)] = 15
    minutes: Annotated[int, Field(gt=0)]
    devices: Mapping[str, Device] = Field(default_factory=dict)
    expectations: tuple[Expectation, ...] = ()
    series: Mapping[str, str]


def read(path: Path) -> Story:
    """Read a story from JSON, gzipped if the name ends in .gz. Raises StoryError."""
    try:
        data = path.read_bytes()
        return Story.model_validate_json(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (OSError, EOFError, zlib.error) as error:
        raise StoryError(f"{path}: cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise StoryError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def read_all(folder: Path) -> list[Story]:
    """Read the stories of a folder, `*.json` and `*.json.gz`, by name. Raises StoryError."""
    paths = sorted({*folder.glob("*.json"), *folder.glob("*.json.gz")})
    if not paths:
        raise StoryError(f"{folder}: there is no story in it; the files are named NAME.json or NAME.json.gz")
    return [read(path) for path in paths]


def write(story: Story, folder: Path) -> Path:
    """Write a story as NAME.json.gz; equal stories give equal bytes."""
    path = folder / f"{story.name}.json.gz"
    path.write_bytes(gzip.compress(story.model_dump_json(indent=0).encode(), mtime=0))
    return path


def notation(values: Sequence[float | None]) -> str:
    """Return samples in promtool's notation, with one word for a straight line.

    None is a scrape without the series; the first None after samples is a staleness marker.
    """
    words: list[str] = []
    at = 0
    while at < len(values):
        value = values[at]
        if value is None:
            end = next((i for i in range(at, len(values)) if values[i] is not None), len(values))
            marker = at > 0
            words += ["stale"] * marker + [f"_x{end - at - marker}"] * (end - at > marker)
        else:
            end = _line(values, at)
            step = (values[at + 1] or 0.0) - value if end - at > 1 else 0.0
            words.append(f"{value:.12g}{step:+.12g}x{end - at - 1}" if end - at > 1 else f"{value:.12g}")
        at = end
    return " ".join(words)


def _line(values: Sequence[float | None], at: int) -> int:
    """Return where the straight line that begins at `at` ends."""
    first = values[at]
    assert first is not None
    following = values[at + 1] if at + 1 < len(values) else None
    if following is None:
        return at + 1
    step, end = following - first, at + 2
    while end < len(values):
        value = values[end]
        if value is None or abs(value - first - step * (end - at)) > 1e-9 * max(1.0, abs(value)):
            break
        end += 1
    # A line through two points only is not shorter than the two points.
    return end if end - at > 2 or not step else at + 1
