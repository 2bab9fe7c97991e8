"""The models of a training in a scenario: its step as a pipeline, and its rhythm."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from gpugauge.simulator.device.pipeline import Pipeline, pipeline
from gpugauge.simulator.scenario.loadspec import Level, Seconds, StrictModel

_Time = Annotated[float, Field(ge=0, le=3600)]
_Part = Annotated[float, Field(gt=0, le=1)]
_Loss = Annotated[float, Field(ge=0, lt=1)]


class PipelineSpec(StrictModel):
    """See pipeline.Pipeline: the same fields, of which most are seconds a step."""

    load: _Time = 0.04
    workers: Annotated[int, Field(ge=0, le=1024)] = 4
    copy_: Annotated[_Time, Field(alias="copy")] = 0.002
    pinned: bool = True
    host: _Time = 0.03
    synchronises: bool = False
    kernels: Annotated[float, Field(gt=0, le=3600)] = 0.1
    fill: _Part = 0.85
    precision_unused: bool = False
    tensor: Level = 0.5
    peer: _Time = 0.0
    world_size: Annotated[int, Field(ge=1)] = 1
    other: _Loss = 0.0
    clock: _Part = 1.0
    throttle: Literal["thermal", "power_cap"] = "thermal"
    cpu_quota: _Part = 1.0
    paging: _Loss = 0.0
    retries: _Time = 0.0

    @model_validator(mode="after")
    def _check(self) -> PipelineSpec:
        if self.peer and self.world_size < 2:
            raise PydanticCustomError("peer", "peer is a step of another rank: it needs a world_size of at least 2")
        return self

    @property
    def pipeline(self) -> Pipeline:
        """What it describes."""
        return pipeline(self.model_dump(by_alias=True))


class Phases(StrictModel):
    """What a training does besides: it compiles at its start, and at the end of `every` so many seconds it evaluates
    and then writes a checkpoint; at the second `stalled_at` of the scenario it stands still. All in seconds.
    """

    compiling: _Time = 0.0
    every: Seconds | None = None
    evaluating: _Time = 0.0
    checkpointing: _Time = 0.0
    stalled_at: float | None = None

    @model_validator(mode="after")
    def _check(self) -> Phases:
        if (self.every is None) != (self.evaluating + self.checkpointing == 0):
            raise PydanticCustomError("every", "every belongs to evaluating and checkpointing, and they to every")
        if self.every is not None and self.evaluating + self.checkpointing >= self.every:
            raise PydanticCustomError("every", "evaluating and checkpointing leave no time to train in every period")
        return self
