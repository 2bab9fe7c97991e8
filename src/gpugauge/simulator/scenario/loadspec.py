"""The models of loads in a scenario, and the base of all models of a scenario."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


class StrictModel(BaseModel):
    """A frozen model without unknown keys and conversions."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


Level = Annotated[float, Field(ge=0, le=1)]
# Beyond these limits sums and slopes of a load are not finite. The simulator samples no finer; nothing runs longer.
_MIN_SECONDS, _MAX_SECONDS = 1e-3, 1e9
_MIN_BETWEEN_POINTS = 1e-6
Seconds = Annotated[float, Field(ge=_MIN_SECONDS, le=_MAX_SECONDS)]


class ConstantLoad(StrictModel):
    """A constant level."""

    shape: Literal["constant"]
    level: Level

    @property
    def peak(self) -> float:
        """The highest level."""
        return self.level


class _Wave(StrictModel):
    low: Level = 0.0
    high: Level = 1.0
    period: Seconds

    @property
    def peak(self) -> float:
        """The highest level."""
        return max(self.low, self.high)


class SquareLoad(_Wave):
    """`high` for the first `duty` of each `period`, then `low`."""

    shape: Literal["square"]
    duty: Level = 0.5


class SineLoad(_Wave):
    """From `low` to `high` and back once a `period`."""

    shape: Literal["sine"]


class PointsLoad(StrictModel):
    """Straight lines through [second, level] points; with `repeat` they start again after the last one."""

    shape: Literal["points"]
    points: Annotated[list[Annotated[list[float], Field(min_length=2, max_length=2)]], Field(min_length=1)]
    repeat: bool = False

    @model_validator(mode="after")
    def _check_points(self) -> PointsLoad:
        times = [t for t, _ in self.points]
        if any(later - earlier < _MIN_BETWEEN_POINTS for earlier, later in pairwise(times)):
            raise ValueError("the seconds of points must increase, by a microsecond or more")
        if not all(0 <= level <= 1 for _, level in self.points):
            raise ValueError("the levels of points must be from 0 to 1")
        if max(abs(times[0]), abs(times[-1])) > _MAX_SECONDS:
            raise ValueError("the seconds of points must be from -1e9 to 1e9")
        if self.repeat and times[-1] < _MIN_SECONDS:
            raise ValueError("repeated points must end at second 0.001 or later")
        return self

    @property
    def peak(self) -> float:
        """The highest level."""
        return max(level for _, level in self.points)


def _bare_level(value: object) -> object:
    """Return a constant load for a number: `load: 0.9`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"shape": "constant", "level": value}
    return value


AnyLoad = Annotated[
    ConstantLoad | SquareLoad | SineLoad | PointsLoad, Field(discriminator="shape"), BeforeValidator(_bare_level)
]
