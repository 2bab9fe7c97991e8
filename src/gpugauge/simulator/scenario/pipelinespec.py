"""The models of a training in a scenario: its step as a pipeline, and its phases."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gpugauge.simulator.device.pipeline import Pipeline
from gpugauge.simulator.scenario.loadspec import Level, Seconds, StrictModel

_StepSeconds = Annotated[float, Field(ge=0, le=3600)]
_Ratio = Annotated[float, Field(gt=0, le=1)]
_LostRatio = Annotated[float, Field(ge=0, lt=1)]


class PipelineSpec(StrictModel):
    """The fields of pipeline.Pipeline, most in seconds per step."""

    load: _StepSeconds = 0.04
    storage: Level = 0.0
    workers: Annotated[int, Field(ge=0, le=1024)] = 4
    straggler: Annotated[float, Field(ge=1, le=1000)] = 1.0
    restart: _StepSeconds = 0.0
    cores: Annotated[int, Field(ge=1, le=4096)] | None = None
    copy_: Annotated[_StepSeconds, Field(alias="copy")] = 0.002
    pinned: bool = True
    host: _StepSeconds = 0.03
    synchronises: bool = False
    kernels: Annotated[float, Field(gt=0, le=3600)] = 0.1
    fill: _Ratio = 0.85
    precision_unused: bool = False
    tensor_speedup: Annotated[float, Field(ge=1, le=100)] = 2.0
    tensor: Level = 0.5
    peer: _StepSeconds = 0.0
    world_size: Annotated[int, Field(ge=1)] = 1
    other: _LostRatio = 0.0
    clock: _Ratio = 1.0
    throttle: Literal["thermal", "power_cap"] = "thermal"
    cpu_quota: _Ratio = 1.0
    paging: _LostRatio = 0.0
    retries: Annotated[float, Field(ge=0, le=1000)] = 0.0
    cached: Annotated[int, Field(ge=0, le=100_000)] = 100
    device_call: _StepSeconds = 0.0005

    @model_validator(mode="after")
    def _check(self) -> PipelineSpec:
        if self.peer and self.world_size < 2:
            raise ValueError("peer is the step of another rank: it needs a world_size of at least 2")
        if (self.straggler > 1.0 and self.workers < 2) or (self.restart and not self.workers):
            raise ValueError("straggler needs at least 2 workers, and restart at least 1")
        return self

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline with these values."""
        return Pipeline(**self.model_dump(by_alias=True))


class Phases(StrictModel):
    """The phases of a training: it compiles at its start; at the end of every period of `every` seconds it evaluates
    and then writes a checkpoint; from the second `stalled_at` of the scenario on it makes no progress. All in seconds.
    """

    compiling: _StepSeconds = 0.0
    every: Seconds | None = None
    evaluating: _StepSeconds = 0.0
    checkpointing: _StepSeconds = 0.0
    stalled_at: float | None = None

    @model_validator(mode="after")
    def _check(self) -> Phases:
        if (self.every is None) != (self.evaluating + self.checkpointing == 0):
            raise ValueError("every and evaluating or checkpointing must be given together")
        if self.every is not None and self.evaluating + self.checkpointing >= self.every:
            raise ValueError("evaluating and checkpointing leave no time to train in every period")
        return self
