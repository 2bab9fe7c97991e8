"""Counts the FLOPs of one step by torch's formulas, if the environment asks for it, and slows down that step. Torch's
own FlopCounterMode registers hooks on all modules, and an error of a formula would reach the program.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from gpugauge.hook.work import COUNTED, STATED
from gpugauge.wire.record import STEPS

if TYPE_CHECKING:
    from gpugauge.hook.observer import Observer

# The backward pass of a fused attention computes the scores again, one of its five matrix products. That is no FLOP of
# the model.
_FUSED_ATTENTION = re.compile(r"attention.*backward")
_WITHOUT_SCORES = 4 / 5
_FIRST_STEP = 3  # the steps before it can contain work that is done once
_MAX_TRIES = 5

# The fused attention of the CPU, for which torch has no formula. It has the arguments of those that have one.
_FOR_CPU = "_scaled_dot_product_flash_attention_for_cpu"
_FORMULAS = {
    **flop_counter.flop_registry,
    **{
        operator: formula
        for name, of in ((_FOR_CPU, "sdpa_flop"), (f"{_FOR_CPU}_backward", "sdpa_backward_flop"))
        if (operator := getattr(torch.ops.aten, name, None)) and (formula := getattr(flop_counter, of, None))
    },
}


class CountingMode(TorchDispatchMode):  # type: ignore[misc]  # torch is Any to mypy
    """Adds up the FLOPs of all operators. An operator that has no formula counts as none."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0
        self.failed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and count it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        try:
            # The formulas would count the shapes of a whole sharded tensor.
            if not all(kind in (torch.Tensor, torch.nn.Parameter) for kind in types):
                self.failed = True
            operator = getattr(func, "_overloadpacket", None)
            formula = _FORMULAS.get(operator)
            if formula is not None:
                share = _WITHOUT_SCORES if _FUSED_ATTENTION.search(str(operator)) else 1
                self.total += formula(*args, **kwargs, out_val=result) * share
        except Exception:
            self.failed = True
        return result


class StepCounter:
    """Counts one training step, from the end of a step to the end of the next one, on the training thread; not while
    another dispatch mode is active, nor a program that compiles, which a mode would keep dynamo from, nor a step that
    an evaluation or another phase interrupts.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._mode: CountingMode | None = None
        self._thread = self._begin = self._tries = 0

    def after_step(self) -> None:
        """Begin or end the count after a step."""
        steps = self._observer.record.words[STEPS]
        if self._mode is None:
            self._start(steps)
        elif steps > self._begin and threading.get_ident() == self._thread:
            self._end(self._mode, steps)
        if self._mode is not None or steps < _FIRST_STEP:
            self._observer.record.step_due = 0  # the next step begins or ends the count

    def interrupt(self) -> None:
        """Give up the count of this step."""
        if self._mode is not None and threading.get_ident() == self._thread:
            self._mode.failed = True
            self._leave(self._mode)

    def _start(self, steps: int) -> None:
        state = self._observer.state
        known = state.flops.source in (STATED, COUNTED)
        if known or steps < _FIRST_STEP or self._tries >= _MAX_TRIES or state.compilations != 0:
            return
        if not self._observer.record.on_training_thread() or _get_current_dispatch_mode() is not None:
            return
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        self._tries += 1
        self._thread, self._begin = threading.get_ident(), steps
        mode = CountingMode()
        mode.__enter__()
        self._mode = mode

    def _end(self, mode: CountingMode, steps: int) -> None:
        state = self._observer.state
        if self._leave(mode) and mode.total and not mode.failed and state.compilations == 0:
            state.know_flops(COUNTED, mode.total / (steps - self._begin))

    def _leave(self, mode: CountingMode) -> bool:
        """Leave the mode; return whether that was possible. A mode of the program inside of it ends first."""
        if _get_current_dispatch_mode() is not mode:
            mode.failed = True
            return False
        self._mode = None
        mode.__exit__(None, None, None)
        return True
