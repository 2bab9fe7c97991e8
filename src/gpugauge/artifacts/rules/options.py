"""The parameters of the Prometheus rules, from flags and a YAML file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from warnings import catch_warnings, simplefilter

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from gpugauge import catalog
from gpugauge.base.duration import format_duration, seconds
from gpugauge.base.serving import COMMANDS, IDLE_SECONDS
from gpugauge.settings.kinds import RUNBOOK_URL, URL_PATTERN, ConfigError
from gpugauge.settings.yaml_model import YamlModel, hint
from gpugauge.settings.yaml_text import Document
from gpugauge.verdict.ranks import SLOW_ABOVE

# No \w: names are ASCII in Prometheus 2.
_LABEL = "[a-zA-Z_][a-zA-Z0-9_]*"
_MATCHER = _LABEL + r'(=|!=|=~|!~)"[^"\\{}`]*"'
_MATCHERS = rf"^({_MATCHER}(,{_MATCHER})*)?$"
# Of regular expressions without backslashes and braces: a class, and what Python's have and RE2's do not.
_CLASS = re.compile(r"\[\^?\]?(?:\[:\^?\w*:\]|[^\]])*\]")
_FOREIGN = re.compile(r"\(\?(?!:|P<[A-Za-z0-9_]+>|[ims]+\)|[ims]*(?:-[ims]+)?:).{0,2}|[*+?]\+", re.DOTALL)
_POSIX = re.compile(
    r"\^?(?:alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|word|xdigit)", re.ASCII
)
_OF_JOB = re.compile(r"workload_(?:namespace|job|job_kind)[=!]")
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABELS = {label for row in catalog.metrics() for label in row.labels} | {"__name__", "le"}
_OURS = _LABELS | {"instance", "severity", "alertname"}
_PROCESS_LABELS = {label for row in catalog.metrics() if row.name == "gpu_process_host_info" for label in row.labels}
_OF_TARGETS = (
    "only some series have it; write workload_namespace, workload_job, workload_job_kind, or a label of the targets"
)


class UnknownAlertError(ConfigError):
    """A severity for an alert that does not exist."""

    def __init__(self, alert: str, known: Iterable[str]) -> None:
        super().__init__(f"severities.{alert}: there is no such alert{hint(alert, known)}")
        self.alert = alert


def _seconds(value: object) -> object:
    """Return the seconds of a duration, and any other value as it is. Raises ValueError."""
    found = seconds(value)
    if isinstance(found, float) and not found.is_integer():
        raise ValueError(f"must be whole seconds, not {value!r}")
    return found


def _share(value: object) -> object:
    """Return the share that `40%`, `0.4` or `40` stands for. Raises ValueError."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(?:e(-?\d+))?\s*(%?)", str(value).strip(), re.ASCII)
    number = float(f"{found[1]}e{found[2] or 0}") if found else 0.0
    share = number / 100 if found and (found[3] or number >= 1) else number
    if isinstance(value, bool) or not 0 < share < 1:
        raise ValueError(f"must be above 0 % and below 100 %, written like 40% or 0.4, not {value!r}")
    return share


def _checked(expression: str) -> None:
    """Raise ValueError if the text is no regular expression, or one that Prometheus (RE2) refuses."""
    try:
        with catch_warnings():
            simplefilter("ignore", FutureWarning)  # Python may read [[ otherwise one day
            re.compile(expression)
    except re.error as error:
        raise ValueError(f"{expression!r} is no regular expression: {error}") from None
    posix = [name for part in _CLASS.findall(expression) for name in re.findall(r"\[:(\^?\w*):\]", part)]
    foreign = _FOREIGN.search(_CLASS.sub("x", expression))
    if foreign or not all(_POSIX.fullmatch(name) for name in posix):
        text = foreign[0] if foreign else "a class that RE2 does not have"
        raise ValueError(f"{expression!r} is no regular expression of Prometheus (RE2): {text}")


def _regex(value: str) -> str:
    _checked(value)
    if re.search(r'["\\`%{}]', value):
        raise ValueError('must not contain any of " \\ ` % { }; write [.] for a dot')
    return value


def _matchers(value: object) -> object:
    """Return the value. Raises ValueError if it is text that is no list of matchers, or a regular expression of one is
    none.
    """
    if isinstance(value, str) and not re.fullmatch(_MATCHERS[1:-1], value):
        bare = re.fullmatch(rf"({_LABEL}(?:=~?|!=|!~))([^\s\"'\\\\{{}}`,]+)", value)
        shown = f'{bare[1]}"{bare[2]}"' if bare else 'cluster="a"'
        raise ValueError(f"must be written like '{shown}', not {value}")
    for operator, expression in re.findall(r'([=!]~?)"([^"]*)"', value) if isinstance(value, str) else ():
        if operator.endswith("~"):
            _checked(expression)
    return value


def _error(sentence: str, at: Sequence[str]) -> PydanticCustomError:
    return PydanticCustomError("inconsistent", "{sentence}", {"sentence": sentence, "at": at})


Matchers = Annotated[str, BeforeValidator(_matchers)]
Duration = Annotated[int, BeforeValidator(_seconds), Field(gt=0)]
Share = Annotated[float, BeforeValidator(_share)]
Severity = Literal["info", "warning", "critical"]


class Parameters(BaseModel):
    """The parameters; durations in seconds, or as text such as `15m` or `1h30m`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    threshold: Share = Field(
        default=0.5,
        description="Load of a training, such as 40%, 0.4 or 40, below which TrainingLoadLow fires. By namespace: "
        "team-a=60%,default=40%.",
    )
    thresholds: Mapping[str, Share] = Field(
        default_factory=dict, description="Loads by namespace (workload_namespace) in place of the threshold."
    )
    critical: Annotated[float | None, BeforeValidator(_share)] = Field(
        default=None,
        description="Load below which TrainingLoadVeryLow (critical) fires instead of TrainingLoadLow; no such level "
        "without it.",
    )
    per_cause: bool = Field(
        default=False,
        description="Adds an alert for each cause of a low load, for routes by cause. They fire in addition to "
        "TrainingLoadLow.",
    )
    patience: Duration = Field(
        default=900, description="Time over which the training load and its causes are averaged."
    )
    idle_patience: Duration = Field(default=IDLE_SECONDS, description="Time for which a job may hold GPUs unused.")
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
        default=SLOW_ABOVE,
        gt=1,
        description="A rank holds the others up if its own work takes more than this multiple of the median rank's.",
    )
    release_patience: Duration = Field(
        default=1800, description="Time for which the driver may be released before DriverReleasedLong fires."
    )
    scrape_interval: Duration = Field(default=15, description="The longest scrape interval of the exporters.")
    # A recorded value is read for 5 minutes: two evaluations must fit, even if one is late.
    evaluation_interval: Annotated[Duration, Field(le=120)] = Field(
        default=60,
        description="Time between two evaluations of the rules, 2m at most. It is doubled, up to 2m, for the rules "
        "about the lost time of jobs.",
    )
    matchers: Matchers = Field(
        default="",
        pattern=_MATCHERS,
        description='Label matchers of the targets, such as cluster="a",env!="test", for every selector, and of jobs: '
        "workload_namespace, workload_job and workload_job_kind. Only jobs that these select have alerts and costs.",
    )
    up_matchers: Matchers = Field(
        default='job=~".*gpugauge.*",job!~".*sidecar.*"',
        min_length=1,
        description="Label matchers that select the exporters among all scrape targets (`up`). Sidecars share the "
        "instance of the exporter of their node, and are left out.",
    )
    training_matchers: Matchers = Field(
        default='torch_build=~"cuda|rocm"',
        pattern=_MATCHERS,
        description="Label matchers of gpu_process_host_info that select processes without the hook as trainings. "
        "Their load is measured from outside the process. Empty: none.",
    )
    serving: Annotated[str, BeforeValidator(_regex)] = Field(
        default=COMMANDS,
        description="Regular expression of the commands (workload_command) of servers and notebooks, which are no "
        "trainings unless they use the hook.",
    )
    cluster_label: str = Field(
        default="cluster",
        pattern=r"^([a-zA-Z_][a-zA-Z0-9_]*)?$",
        description="Label of the cluster, which Prometheus or its targets add. All rules keep it.",
    )
    name: str = Field(
        default="gpugauge",
        pattern=r"^[a-zA-Z]([a-zA-Z0-9_]*[a-zA-Z0-9])?$",  # also that of the PrometheusRule
        max_length=200,
        description="First part of the names of groups and recorded series. A second set of rules in the same "
        "Prometheus needs a name of its own.",
    )
    runbook_url: str = Field(
        default=RUNBOOK_URL, pattern=URL_PATTERN, description="Address of the runbook, for links in the alerts."
    )
    dashboard_url: str = Field(
        default="",
        pattern=URL_PATTERN,
        description="Address of Grafana, for links to the dashboards; no links without it.",
    )
    engine: Literal["prometheus", "grafana"] = Field(
        default="prometheus",
        description="The program that evaluates the alerts. The texts for grafana contain no queries, because Grafana "
        "ignores them.",
    )
    severities: Mapping[str, Severity] = Field(default_factory=dict, description="Severities by alert.")

    @model_validator(mode="before")
    @classmethod
    def _by_namespace(cls, tree: Any) -> Any:
        """Return the tree with the thresholds by namespace of `threshold: {a: 60%, default: 40%}`, or of the text."""
        found = tree.get("threshold") if isinstance(tree, dict) else None
        if isinstance(found, str) and "=" in found:
            pairs = [part.strip().partition("=")[::2] for part in found.split(",")]
            found = dict(pairs)
            if len(found) < len(pairs):
                raise _error("a namespace has two loads", ["threshold"])
        if not isinstance(found, Mapping):
            return tree
        others = {key: value for key, value in tree.items() if key != "threshold"}
        named, name = {}, ""
        try:
            for name, value in found.items():
                named[name] = _share(value)
        except ValueError as error:
            raise _error(str(error), ["threshold", name]) from None
        default = {"threshold": named.pop("default")} if "default" in named else {}
        return others | default | {"thresholds": {**tree.get("thresholds", {}), **named}}

    @model_validator(mode="after")
    def _consistent(self) -> Parameters:
        lowest = min(self.threshold, *self.thresholds.values(), 1.0)
        if self.critical is not None and self.critical >= lowest:
            raise self._error(
                f"must be below threshold ({lowest:.4g}), not {self.critical:.4g}", "critical", "threshold"
            )
        if bad := [name for name in self.thresholds if not _NAMESPACE.fullmatch(name)]:
            raise self._error(f"{bad[0]!r} is no name of a namespace; write team-a=60%,default=40%", "threshold")
        if (least := 4 * self.scrape_interval) > self.shortest:
            name = min(("patience", "idle_patience"), key=lambda key: getattr(self, key))
            least_words, interval, found = map(format_duration, (least, self.scrape_interval, self.shortest))
            sentence = f"{name} must be at least {least_words}, four scrape intervals of {interval}, not {found}"
            raise self._error(f"{sentence}; a number without a unit is seconds", name, "scrape_interval")
        if self.cluster_label in _OURS:
            raise self._error(f"{self.cluster_label} is a label of the exporter, not of a cluster", "cluster_label")
        for key, matchers, foreign, why in (
            ("matchers", self.target_matchers, _LABELS, _OF_TARGETS),
            ("up_matchers", self.up_matchers, _LABELS, "up has the labels of the targets only"),
            (
                *("training_matchers", self.training_matchers, _LABELS - _PROCESS_LABELS),
                "gpu_process_host_info has no such label",
            ),
        ):
            labels = re.findall(rf"({_LABEL})(?:=|!)", re.sub(r'"[^"]*"', "", matchers))
            if label := next((label for label in labels if label in foreign), None):
                raise self._error(f"no rule would fire with {label}: {why}", key)
            exact = set(re.findall(rf'({_LABEL})="([^"]*)"', getattr(self, key)))
            if len(exact) > len({label for label, _ in exact}):
                raise self._error("no rule would fire with two values of one label", key)
        return self

    @property
    def target_matchers(self) -> str:
        """The matchers of labels that all series have."""
        return ",".join(part for part in self._parts() if not _OF_JOB.match(part))

    @property
    def job_matchers(self) -> str:
        """The matchers of labels of jobs."""
        return ",".join(part for part in self._parts() if _OF_JOB.match(part))

    def _parts(self) -> list[str]:
        return re.findall(r'[^",]+(?:"[^"]*")?', self.matchers)

    def _error(self, sentence: str, *keys: str) -> PydanticCustomError:
        """Return an error at the first of the keys that is set."""
        return _error(sentence, [key for key in keys if key in self.model_fields_set][:1] or keys[:1])

    @property
    def shortest(self) -> int:
        """The shortest range in any rule, seconds."""
        return min(self.patience, self.idle_patience, self.lookback)

    @property
    def memory(self) -> int:
        """Time for which the owner and the start of an ended process count for its job, seconds."""
        return 4 * self.patience

    @property
    def down_window(self) -> int:
        """Time of which a share of failed scrapes makes an exporter down, seconds."""
        return self.patience + self.settle

    @property
    def lookback(self) -> int:
        """Time after which the last value of a gauge is no longer used, seconds, as in Prometheus itself."""
        return max(300, 4 * self.scrape_interval)


_FILE = YamlModel(Parameters, "rules file", synonyms={"for": "engine"})


def read(file: Path | None, flags: Mapping[str, object]) -> Document:
    """Return the parameters that a file and flags give; a flag takes precedence. Raises ConfigError."""
    document = _FILE.read(file) if file else Document()
    for name, value in flags.items():
        document.put((name,), value, flag_of(name))
    return document


def flag_of(name: str) -> str:
    """Return the flag of a parameter."""
    return {"severities": "--severity", "engine": "--for"}.get(name, "--" + name.replace("_", "-"))


def validate(document: Document, others: Sequence[str] = ()) -> Parameters:
    """Return the parameters of a document. Raises ConfigError with a line for each error, also for `others`."""
    return _FILE.validate(document, others)
