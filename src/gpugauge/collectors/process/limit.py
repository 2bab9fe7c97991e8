"""Limit of the processes that are exported one by one: the largest, with hysteresis."""

from __future__ import annotations

from collections.abc import Collection, Mapping

# A hidden process replaces a shown one only if it is larger by this factor and this number of bytes: two processes of
# about the same size must not alternate.
_REPLACE_FACTOR = 1.25
_REPLACE_BYTES = 64 << 20


def choose_shown(shown: Collection[str], sizes: Mapping[str, int], max_shown: int) -> set[str]:
    """Return at most `max_shown` names of `sizes` (bytes by name) to show next. `shown` are those shown now."""
    ranked = sorted(sizes, key=lambda name: (-sizes[name], name))
    if len(ranked) <= max_shown:
        return set(ranked)
    kept = [name for name in ranked if name in shown][:max_shown]
    hidden = [name for name in ranked if name not in kept]
    free = max_shown - len(kept)
    kept, hidden = kept + hidden[:free], hidden[free:]
    kept.sort(key=lambda name: (sizes[name], name))
    for i, name in enumerate(hidden[: len(kept)]):  # the largest hidden one against the smallest shown one
        if sizes[name] <= sizes[kept[i]] * _REPLACE_FACTOR + _REPLACE_BYTES:
            break
        kept[i] = name
    return set(kept)
