"""The parameters of the Prometheus rules, from flags and a YAML file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gpugauge.duration import format_duration, parse_duration
from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.nearest import hint
from gpugauge.settings.yaml_model import YamlModel
from gpugauge.settings.yaml_text import Document

_MATCHER = r'[a-zA-Z_]\w*(=|!=|=~|!~)"[^"\\{}]*"'
Severity = Literal["info", "warning", "critical"]


class RulesError(ConfigError):
    """Parameters that cannot be used. The message is one sentence with file, line and key."""


class UnknownAlertError(RulesError):
    """A severity for an alert that does not exist."""

    def __init__(self, alert: str, known: Iterable[str]) -> None:
        super().__init__(f"severities.{alert}: there is no such alert{hint(alert, known)}")
        self.alert = alert


def _seconds(value: object) -> object:
    """Return the seconds of text such as 1h30m, and any other value as it is. Raises ValueError."""
    if not isinstance(value, str):
        return value
    seconds = parse_duration(value)
    if not seconds.is_integer():
        raise ValueError(f"must be whole seconds, not {value!r}")
    return int(seconds)


Duration = Annotated[int, BeforeValidator(_seconds), Field(gt=0)]


class Parameters(BaseModel):
    """The parameters; durations in seconds, or as text such as `15m` or `1h30m`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    info_below: float = Field(
        default=0.8, gt=0, lt=1, description="Training load, 0 to 1, below which TrainingLoadLow fires."
    )
    warning_below: float = Field(
        default=0.5, gt=0, lt=1, description="Training load, 0 to 1, below which TrainingLoadVeryLow fires."
    )
    patience: Duration = Field(
        default=900, description="Time over which the training load and its causes are averaged."
    )
    idle_patience: Duration = Field(default=1800, description="Time for which a job may hold GPUs without using them.")
    stall_patience: Duration = Field(default=600, description="Time for which a training may make no progress.")
    min_job_age: Duration = Field(
        default=900, description="Minimum age of a training before alerts about its load can fire."
    )
    keep_firing: Duration = Field(
        default=900,
        description="Time for which an alert keeps firing after its condition ends, so that gaps do not resolve it.",
    )
    settle: Duration = Field(
        default=300, description="Time for which most conditions must hold before their alert fires."
    )
    straggler_above: float = Field(
        default=1.25,
        gt=1,
        description="The slowest rank is a straggler if its own work takes more than this multiple of the median "
        "rank's.",
    )
    release_patience: Duration = Field(
        default=1800, description="Time for which the driver may be released before DriverReleasedLong fires."
    )
    scrape_interval: Duration = Field(default=15, description="The longest scrape interval of the exporters.")
    evaluation_interval: Duration = Field(
        default=60,
        description="Time between two evaluations of the rules. It is doubled, up to 2m, for the rules about the lost "
        "time of jobs.",
    )
    matchers: str = Field(
        default="",
        pattern=rf"^({_MATCHER}(,{_MATCHER})*)?$",
        description='Label matchers that are added to every selector, such as cluster="a",env!="test".',
    )
    up_matchers: str = Field(
        default='job=~".*gpugauge.*"',
        pattern=rf"^{_MATCHER}(,{_MATCHER})*$",
        description="Label matchers that select the exporters among all scrape targets (`up`).",
    )
    training_matchers: str = Field(
        default="",
        pattern=rf"^({_MATCHER}(,{_MATCHER})*)?$",
        description="Label matchers of gpu_process_host_info that select processes without the hook as trainings, "
        'such as workload_namespace="train". Their load is measured from outside the process.',
    )
    runbook: str = Field(default="docs/runbook.md", description="Address of the runbook, for links in the alerts.")
    severities: Mapping[str, Severity] = Field(default_factory=dict, description="Severities by alert.")

    @model_validator(mode="after")
    def _consistent(self) -> Parameters:
        if self.warning_below >= self.info_below:
            raise ValueError("warning_below must be smaller than info_below")
        if 4 * self.scrape_interval > self.shortest:
            raise ValueError(
                f"scrape_interval is too long: four must fit into the shortest range, {format_duration(self.shortest)}"
            )
        return self

    @property
    def shortest(self) -> int:
        """The shortest range in any rule, seconds."""
        return min(self.patience, self.idle_patience, self.lookback)

    @property
    def memory(self) -> int:
        """Time for which the owner and the start of an ended process count for its job, seconds."""
        return 4 * self.patience

    @property
    def lookback(self) -> int:
        """Time after which the last value of a gauge is no longer used, seconds, as in Prometheus itself."""
        return max(300, 4 * self.scrape_interval)


_FILE = YamlModel(Parameters, "rules file", RulesError)


def read(file: Path | None, flags: Mapping[str, object]) -> Document:
    """Return the parameters that a file and flags give; a flag takes precedence. Raises RulesError."""
    document = _FILE.read(file) if file else Document()
    for name, value in flags.items():
        document.tree[name] = value
        document.places[(name,)] = "--severity" if name == "severities" else "--" + name.replace("_", "-")
    return document


def load(file: Path | None, flags: Mapping[str, object]) -> Parameters:
    """Return the parameters that a file and flags give. Raises RulesError."""
    return validate(read(file, flags))


def validate(document: Document) -> Parameters:
    """Return the parameters of a document. Raises RulesError."""
    return _FILE.validate(document)
