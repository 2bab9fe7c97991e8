"""The shares of a training's steps, and what is not known of them, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping

LOADER_ADVICE = (
    "the waits for batches are not known: declare the loader with gpugauge.hook.batches() or gpugauge.hook.waiting()"
)
# Words by part of training_step_share_ratio.
_WORDS = {
    "data": "waiting for data",
    "peers": "waiting for other ranks",
    "evaluating": "evaluating",
    "checkpointing": "writing checkpoints",
    "compiling": "compiling",
    "generating": "generating",
}
_MIN_SHARE = 0.005  # a smaller one is 0 %


def step_sentence(shares: Mapping[str, float]) -> str:
    """Return the parts of the steps with their shares, the largest first, as "70 % waiting for data, 30 % the rest"; ""
    if no share is known.
    """
    known = sorted(((shares[part], words) for part, words in _WORDS.items() if part in shares), reverse=True)
    named = [(share, words) for share, words in known if share >= _MIN_SHARE]
    if "rest" in shares:
        named.append((shares["rest"], "the rest"))
    return ", ".join(f"{100 * share:.0f} % {words}" for share, words in named)


def loader_advice(undecidable: Collection[str]) -> str:
    """Return what makes the causes of the loader decidable, "" if they are. `undecidable` are names of causes."""
    return LOADER_ADVICE if "data_loading" in undecidable else ""
