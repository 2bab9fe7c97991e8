"""The models of loads in a scenario, and what all models of a scenario share."""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError


def hint(wrong: str, valid: Iterable[str]) -> str:
    """Return what was probably meant, otherwise everything that is valid, in parentheses."""
    names = sorted(valid)
    near = difflib.get_close_matches(wrong, names, 1)
    return f"(did you mean {near[0]}?)" if near else f"(valid: {', '.join(names)})"


class StrictModel(BaseModel):
    """No unknown keys, no conversions, no changes."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_keys(cls, value: Any) -> Any:
        if isinstance(value, dict):
            known = {field.alias or name for name, field in cls.model_fields.items()}
            for key in value:
                if key not in known:
                    nearest = hint(str(key), known)
                    raise PydanticCustomError("key", "unknown key {key} {hint}", {"key": str(key), "hint": nearest})
        return value


Level = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0)]


class _Wobbling(StrictModel):
    """`noise` is the most that a load goes up or down by itself, in a way that `seed` decides."""

    noise: Level = 0.0
    seed: int = 0

    @property
    @abstractmethod
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest level without noise."""

    @property
    def peak(self) -> float:
        """The highest level, noise included."""
        return self.bounds[1] + self.noise

    @model_validator(mode="after")
    def _check_noise(self) -> _Wobbling:
        low, high = self.bounds
        if self.noise and (low - self.noise < 0 or high + self.noise > 1):
            raise PydanticCustomError(
                "noise", "noise {noise} takes the load out of 0 to 1", {"noise": f"{self.noise:g}"}
            )
        return self


class ConstantLoad(_Wobbling):
    """The same level all the time."""

    shape: Literal["constant"]
    level: Level

    @property
    def bounds(self) -> tuple[float, float]:
        """See _Wobbling."""
        return self.level, self.level


class SquareLoad(_Wobbling):
    """`high` for the first `duty` of each `period`, then `low`."""

    shape: Literal["square"]
    high: Level = 1.0
    low: Level = 0.0
    period: Seconds
    duty: Level = 0.5

    @property
    def bounds(self) -> tuple[float, float]:
        """See _Wobbling."""
        return min(self.low, self.high), max(self.low, self.high)


class SineLoad(_Wobbling):
    """From `low` to `high` and back once a `period`."""

    shape: Literal["sine"]
    low: Level = 0.0
    high: Level = 1.0
    period: Seconds

    @property
    def bounds(self) -> tuple[float, float]:
        """See _Wobbling."""
        return min(self.low, self.high), max(self.low, self.high)


class PointsLoad(_Wobbling):
    """Straight lines through [second, level] points; `repeat` starts again after the last."""

    shape: Literal["points"]
    points: Annotated[list[Annotated[list[float], Field(min_length=2, max_length=2)]], Field(min_length=1)]
    repeat: bool = False

    @model_validator(mode="after")
    def _check_points(self) -> PointsLoad:
        times = [t for t, _ in self.points]
        if any(later <= earlier for earlier, later in pairwise(times)):
            raise PydanticCustomError("points", "the seconds of points must rise")
        if not all(0 <= level <= 1 for _, level in self.points):
            raise PydanticCustomError("points", "the levels of points lie in 0 to 1")
        if self.repeat and times[-1] <= 0:
            raise PydanticCustomError("points", "points that repeat end after second 0")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """See _Wobbling."""
        levels = [level for _, level in self.points]
        return min(levels), max(levels)


def _bare_level(value: object) -> object:
    """`load: 0.9` is short for a constant."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"shape": "constant", "level": value}
    return value


AnyLoad = Annotated[
    ConstantLoad | SquareLoad | SineLoad | PointsLoad, Field(discriminator="shape"), BeforeValidator(_bare_level)
]
