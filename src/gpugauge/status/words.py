"""Words for people for states, causes and kinds of processes."""

from __future__ import annotations

# By cause: what the process does, to follow its name.
_CAUSES = {
    "no_cuda_build": "uses a PyTorch without CUDA",
    "no_visible_device": "sees no GPU",
    "driver_mismatch": "needs a newer driver",
    "unsupported_arch": "has no code for this GPU",
    "model_on_cpu": "trains on the CPU",
    "data_loading": "waits for its data loader",
    "host_bound": "waits for its own Python code",
    "transfer": "waits for copies to the GPU",
    "underfilled": "fills only a part of the GPU",
    "precision_unused": "computes without the tensor cores",
    "waiting_for_peers": "waits for slower ranks",
    "throttled": "runs at lowered clocks",
    "memory_pressure": "is short of GPU memory",
    "contention": "shares its GPU with others",
    "cpu_limited": "has used up its CPU quota",
    "memory_swap_io": "waits for memory or storage",
    "unused_gpus": "holds GPUs that it does not use",
    "unknown": "loses GPU time, the cause is not known",
}
_STATES = {
    "starting": "starting",
    "compiling": "compiling",
    "training": "training",
    "evaluating": "evaluating",
    "checkpointing": "checkpoint",
    "generating": "generating",
    "stalled": "stalled",
    "training_on_cpu": "on the CPU",
    "held_idle": "idle",
    "not_training": "not training",
}
HOOK_COMMAND = "gpugauge run -- python train.py"
RUN_ADVICE = "if it is a training, start it under the hook to learn its state: " + HOOK_COMMAND
STALLED_ADVICE = "find out where it waits: py-spy dump --pid {}"
IDLE_ADVICE = "end it, or give it work: it holds the memory of the GPU and no kernel runs"


def cause_phrase(cause: str) -> str:
    """Return what a process with a cause does, such as "waits for its data loader"."""
    return _CAUSES.get(cause, f"is limited by {cause.replace('_', ' ')}")


def state_words(state: str | None, role: str | None, hook: bool) -> str:
    """Return the state of a process in at most 12 characters. It is known only with the hook, or while the process is
    idle.
    """
    if role == "display":
        return "display"
    return "no hook" if state in {None, "unknown"} and not hook else _STATES.get(state or "", state or "")


def percent(ratio: float) -> str:
    """Return a ratio in per cent."""
    return f"{100 * ratio:.0f} %"


def duration(seconds: float) -> str:
    """Return a duration in its largest unit, with two digits below ten."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= size:
            amount = seconds / size
            return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:.0f} {unit}"
    return f"{1000 * max(0.0, seconds):.3g} ms"


def plural(count: int, noun: str, ending: str = "s") -> str:
    """Return a number with its noun."""
    return f"{count} {noun}{'' if count == 1 else ending}"
