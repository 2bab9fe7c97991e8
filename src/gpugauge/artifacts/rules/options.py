"""The parameters of the Prometheus rules, from flags or a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MATCHER = r'[a-zA-Z_]\w*(=|!=|=~|!~)"[^"\\{}]*"'
Severity = Literal["info", "warning", "critical"]


class RulesError(Exception):
    """Parameters that cannot be used; the message is one sentence that names the key."""


def parse_duration(value: object) -> object:
    """Read `15m` as seconds; raises ValueError on text that is no duration of one unit."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"(\d+)([smhd])", value)
    if not found:
        raise ValueError("a duration is written like 30s, 15m or 2h")
    return int(found[1]) * _UNITS[found[2]]


def duration(seconds: int) -> str:
    """Write seconds as Prometheus does, in the largest unit that divides them."""
    unit = next(unit for unit in "dhms" if seconds % _UNITS[unit] == 0)
    return f"{seconds // _UNITS[unit]}{unit}"


Duration = Annotated[int, BeforeValidator(parse_duration), Field(gt=0)]


class Parameters(BaseModel):
    """What the rules depend on; durations in seconds, or as text such as `15m`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    info_below: float = Field(
        default=0.8, gt=0, lt=1, description="Training load below which TrainingLoadLow fires, 0 to 1."
    )
    warning_below: float = Field(
        default=0.5, gt=0, lt=1, description="Training load below which TrainingLoadVeryLow fires, 0 to 1."
    )
    patience: Duration = Field(default=900, description="Time over which load and causes are averaged.")
    idle_patience: Duration = Field(default=1800, description="Time for which GPUs may be held without being used.")
    stall_patience: Duration = Field(default=600, description="Time for which a training may stand still.")
    min_job_age: Duration = Field(default=900, description="Age from which the load of a training is judged.")
    keep_firing: Duration = Field(
        default=900, description="Time for which an alert stays after its last sign: gaps do not resolve it."
    )
    settle: Duration = Field(
        default=300, description="Time for which most conditions must hold before they fire: blips are nothing to tell."
    )
    straggler_above: float = Field(
        default=1.25, gt=1, description="Own work of the slowest rank over that of the one in the middle: a straggler."
    )
    release_patience: Duration = Field(
        default=1800, description="Time for which the driver may be released before somebody is told."
    )
    scrape_interval: Duration = Field(default=15, description="The longest scrape interval of the exporters.")
    evaluation_interval: Duration = Field(
        default=60,
        description="Time between two evaluations of the rules; of those about what jobs lose twice that, up to 2m.",
    )
    matchers: str = Field(
        default="",
        pattern=rf"^({_MATCHER}(,{_MATCHER})*)?$",
        description='Label matchers for every selector, such as cluster="a",env!="test".',
    )
    up_matchers: str = Field(
        default='job=~".*gpugauge.*"',
        pattern=rf"^{_MATCHER}(,{_MATCHER})*$",
        description="Label matchers that find the exporters among all scrape targets (`up`).",
    )
    training_matchers: str = Field(
        default="",
        pattern=rf"^({_MATCHER}(,{_MATCHER})*)?$",
        description="Label matchers of gpu_process_host_info that say which processes without the hook are trainings, "
        'such as workload_namespace="train"; their load is judged from outside.',
    )
    runbook: str = Field(default="docs/runbook.md", description="Address of the runbook.")
    severities: Mapping[str, Severity] = Field(default_factory=dict, description="Severities by alert.")

    @model_validator(mode="after")
    def _consistent(self) -> Parameters:
        if self.warning_below >= self.info_below:
            raise ValueError("warning_below must be smaller than info_below")
        if 4 * self.scrape_interval > self.shortest:
            raise ValueError(
                f"scrape_interval is too long: the shortest of the windows, {duration(self.shortest)}, must hold 4"
            )
        return self

    @property
    def shortest(self) -> int:
        """The shortest range in any rule, seconds."""
        return min(self.patience, self.idle_patience, self.lookback)

    @property
    def memory(self) -> int:
        """How long an ended process still tells whose it was and since when its job trains, seconds."""
        return 4 * self.patience

    @property
    def lookback(self) -> int:
        """How long a gauge may be missing before its value is forgotten, seconds: as in Prometheus itself."""
        return max(300, 4 * self.scrape_interval)


def load(file: Path | None, flags: Mapping[str, object]) -> Parameters:
    """Return the parameters, flag over file over default; raises RulesError."""
    tree: Any = {}
    if file:
        try:
            tree = yaml.safe_load(file.read_text()) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise RulesError(f"{file}: {' '.join(str(error).split())}") from None
        if not isinstance(tree, dict):
            raise RulesError(f"{file}: keys and values are expected")
    try:
        return Parameters.model_validate(tree | dict(flags))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise RulesError(f"{key}: {first['msg']}" if key else str(first["msg"])) from None
