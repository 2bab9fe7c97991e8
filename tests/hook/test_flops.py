"""The model FLOPs of drawn models, against those counted by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests import needs

torch = needs.torch()

from torch import nn  # noqa: E402 - after the skip
from torch.utils.flop_counter import (  # noqa: E402 - after the skip
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from gpugauge.hook.flopcount import CountingMode  # noqa: E402 - after the skip
from gpugauge.hook.models import Models, flops_of_token, matmul_dtype  # noqa: E402 - after the skip
from gpugauge.hook.work import COUNTED, PARAMETERS, STATED, ModelFlops  # noqa: E402 - after the skip
from gpugauge.sessions.listener import Sessions  # noqa: E402 - after the skip
from tests.drawn import EVERYTHING, seeds  # noqa: E402 - after the skip
from tests.hook import drawnmodels  # noqa: E402 - after the skip
from tests.hook.conftest import RunFork, finished, until  # noqa: E402 - after the skip

pytestmark = pytest.mark.torch


@seeds(range(40))
def test_a_counted_step_has_the_flops_counted_by_hand(seed: int) -> None:
    drawn = drawnmodels.drawn(seed)
    batch = drawn.batch()
    with CountingMode() as mode:
        drawn.loss(batch).backward()
    assert not mode.failed
    assert mode.total == pytest.approx(drawn.total, rel=1e-9), drawn.name
    with FlopCounterMode(display=False) as torchs:
        drawn.loss(batch).backward()
    # For the fused attention of the CPU, torch has no formula before 2.15, and another one from then on.
    assert torchs.get_total_flops() == drawn.total or "fused" in drawn.name


def test_a_fused_attention_has_five_products_in_torchs_formula() -> None:
    shape = (2, 3, 5, 7)
    forward, backward = sdpa_flop_count(shape, shape, shape), sdpa_backward_flop_count(shape, shape, shape, shape)
    assert backward * 4 / 5 == 2 * forward


@seeds(range(40))
def test_the_flops_of_a_token_are_those_of_the_weights(seed: int) -> None:
    draw = random.Random(seed)
    drawn = drawnmodels.transformer(draw, length=draw.choice((None, None, 1, 2)))
    found = flops_of_token(drawn.model)
    assert found is not None
    assert found * drawn.tokens == drawn.flops
    # The condition that the documentation gives for 2 %: a sequence much shorter than the model is wide.
    if drawn.attention <= 0.02 * drawn.total:
        assert found * drawn.tokens == pytest.approx(drawn.total, rel=0.02)


def frozen(model: Any) -> Any:
    next(model.parameters()).requires_grad_(False)
    return model


class Expert(nn.Module):  # type: ignore[misc]  # torch is Any to mypy
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.linear = nn.MultiheadAttention(8, 2), nn.Linear(8, 8)


@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.Sequential(nn.Linear(8, 8)),  # no attention
        lambda: nn.Sequential(nn.Conv1d(8, 8, 3), nn.MultiheadAttention(8, 2)),
        lambda: nn.Sequential(nn.LSTM(8, 8), nn.MultiheadAttention(8, 2)),
        lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True),  # tokens of two kinds
        lambda: nn.TransformerDecoderLayer(8, 2, 16),
        lambda: frozen(nn.TransformerEncoderLayer(8, 2, 16)),
        Expert,
    ],
)
def test_other_models_have_no_flops_of_a_token(model: Any) -> None:
    assert flops_of_token(model()) is None


def test_torchs_own_layer_is_dense() -> None:
    assert flops_of_token(nn.TransformerEncoderLayer(8, 2, 16)) == 6 * (4 * 8 * 8 + 2 * 8 * 16)


def test_a_model_is_found_by_its_parameters() -> None:
    models, model, part = Models(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2)
    models.add(part)
    models.add(model)
    assert models.of(model.parameters()) is model
    assert models.of(list(model.parameters())[:2]) is None
    for _ in range(20):
        models.add(nn.Linear(1, 1))
    assert models.of(model.parameters()) is None


@pytest.mark.parametrize(
    ("dtype", "known", "autocast", "rounded", "expected"),
    [
        ("bfloat16", False, None, None, "bfloat16"),
        ("float16", True, "bfloat16", "yes", "float16"),
        ("float32", True, "bfloat16", "no", "bfloat16"),
        ("float32", True, None, "yes", "tf32"),
        ("float32", True, None, "no", "float32"),
        ("float32", True, None, None, None),
        ("float32", False, None, "yes", None),  # copies of an optimizer
    ],
)
def test_the_dtype_of_products(dtype: str, known: bool, autocast: Any, rounded: Any, expected: Any) -> None:
    model = nn.Linear(8, 8, dtype=getattr(torch, dtype))
    assert matmul_dtype(model.parameters(), model if known else None, autocast, rounded) == expected
    other = nn.Linear(8, 8, dtype=torch.float64)
    assert matmul_dtype([*model.parameters(), *other.parameters()], model, autocast, rounded) is None


@seeds(range(20))
def test_sums_are_those_of_the_source_that_was_known_best(seed: int) -> None:
    draw, flops = random.Random(seed), ModelFlops()
    known: dict[str, float] = {}
    expected: dict[str, float] = {}
    steps = tokens = 0
    unknown = (0, 0)  # steps and tokens before any source was known
    for _ in range(40):
        more, of_each = draw.randint(0, 5), draw.randint(1, 9)
        best = next((source for source in (STATED, COUNTED, PARAMETERS) if source in known), None)
        amount = more * of_each if best == PARAMETERS else more
        if best is None:
            unknown = (unknown[0] + more, unknown[1] + more * of_each)
        elif amount:
            expected[best] = expected.get(best, 0.0) + known[best] * amount
        steps, tokens = steps + more, tokens + more * of_each
        if draw.random() < 0.3:
            source, per = draw.choice((STATED, COUNTED, PARAMETERS)), float(draw.randint(1, 99))
            flops.know(source, per, steps, tokens)
            if not known and source != STATED and unknown[source == PARAMETERS]:
                expected[source] = per * unknown[source == PARAMETERS]
            unknown = (0, 0)
            known[source] = per
        elif draw.random() < 0.3:
            flops.advance(steps, tokens)
    flops.advance(steps, tokens)
    assert flops.sums == pytest.approx(expected)


PROGRAM = """
import sys, time
sys.path.insert(0, {root!r})
import torch
from gpugauge import hook
from tests.hook import drawnmodels
drawn = drawnmodels.drawn({seed})
{before}
drawn.model.to("cpu")
optimizer = torch.optim.AdamW(drawn.model.parameters())
outer = torch.utils.data.DataLoader([drawn.batch() for _ in range(24)], batch_size=None)
for number, batch in enumerate(outer):
    optimizer.zero_grad()
    drawn.loss(batch).backward()
    optimizer.step()
    {each}
print(drawn.total)
"""


@pytest.mark.parametrize(
    ("before", "each", "source"),
    [
        ("", "pass", "counted"),
        # An evaluation between the steps is not a part of a step.
        (
            "",
            "if number % 2:\n        drawn.model.eval()\n        drawn.loss(batch)\n        drawn.model.train()",
            "counted",
        ),
        ("hook.flops(drawn.total)", "pass", "stated"),
        ("hook.flops(-1), hook.flops('many'), hook.flops(float('nan')), hook.flops(1e99)", "pass", "counted"),
        # In a mode of the program, and in a program that compiles, nothing is counted.
        ("torch.utils.flop_counter.FlopCounterMode(display=False).__enter__()", "pass", None),
        ("drawn.model = torch.compile(drawn.model, backend='eager'); drawn.model(drawn.batch())", "pass", None),
    ],
)
@seeds([1, 2, 4] if EVERYTHING else [1])
def test_the_hook_reports_the_flops_of_all_steps(
    seed: int, before: str, each: str, source: str | None, listener: Sessions, fork: RunFork
) -> None:
    program = PROGRAM.format(
        root=str(drawnmodels.__file__).rsplit("/tests/", 1)[0], seed=seed, before=before, each=each
    )
    process = fork(program, GPUGAUGE_HOOK_COUNT_FLOPS="1")
    total = float(finished(process))
    until(lambda: [s.connected for s in listener.view() if s.hello.pid == process.pid] == [False])
    (session,) = [s for s in listener.view() if s.hello.pid == process.pid]
    assert session.snap is not None
    assert (session.snap.errors, session.snap.steps.count if session.snap.steps else 0) == (0, 24)
    expected = None if source is None else {source: pytest.approx(24 * total, rel=0.02)}
    assert session.snap.flops == expected
