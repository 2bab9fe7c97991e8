"""Which of many are shown: the largest, with hysteresis."""

from __future__ import annotations

from collections.abc import Collection, Mapping

# A hidden one takes the place of a shown one only if it is so much larger: two of about a size must not alternate.
_CLEARLY = 1.25
_LEAST = 64 << 20


def choose(shown: Collection[str], sizes: Mapping[str, int], most: int) -> set[str]:
    """Return the names to show next, at most `most` of those in `sizes`; the others are hidden."""
    ranked = sorted(sizes, key=lambda name: (-sizes[name], name))
    if len(ranked) <= most:
        return set(ranked)
    kept = [name for name in ranked if name in shown][:most]
    hidden = [name for name in ranked if name not in kept]
    free = most - len(kept)
    kept, hidden = kept + hidden[:free], hidden[free:]
    kept.sort(key=lambda name: (sizes[name], name))
    for i, name in enumerate(hidden[: len(kept)]):  # largest of the hidden against smallest of the shown
        if sizes[name] <= sizes[kept[i]] * _CLEARLY + _LEAST:
            break
        kept[i] = name
    return set(kept)
