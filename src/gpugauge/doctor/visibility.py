"""Which GPUs CUDA shows to a process, from CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from collections.abc import Sequence


def visible(value: str | None, names: Sequence[Sequence[str]]) -> tuple[tuple[int, ...], str]:
    """Return the indexes of the GPUs that CUDA shows, and what is wrong with the value, empty if nothing is.
    `names` holds for each GPU its uuid and those of its MIG devices.

    The list ends at the first entry that names no GPU; an entry given twice hides all.
    https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
    """
    if value is None:
        return tuple(range(len(names))), ""
    entries = [entry.strip() for entry in value.split(",")]
    if entries == [""]:
        return (), "it is set to nothing, which hides every GPU"
    found: list[int] = []
    for entry in entries:
        index = _device(entry, names)
        if index is None:
            return tuple(found), _ended(entry, len(names), found)
        found.append(index)
    if len(set(entries)) < len(entries):
        return (), "it names a GPU twice, which hides every GPU"
    return tuple(found), ""


def _device(entry: str, names: Sequence[Sequence[str]]) -> int | None:
    if entry.isascii() and entry.isdigit():
        return int(entry) if int(entry) < len(names) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    matching = {index for index, own in enumerate(names) if any(name.startswith(entry) for name in own)}
    return matching.pop() if len(matching) == 1 else None


def _ended(entry: str, count: int, found: list[int]) -> str:
    what = f"{entry!r} names no GPU" if entry else "it has an empty entry"
    there = f" (there are {count})" if entry.isdigit() else ""
    return f"{what}{there}, which hides " + ("it and what follows" if found else "every GPU")
