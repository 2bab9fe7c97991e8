"""GPUs that are visible to a CUDA process, by CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from collections.abc import Sequence


def visible(value: str | None, names: Sequence[Sequence[str]]) -> tuple[tuple[int, ...], str]:
    """Return the indexes of the visible GPUs, and the problem of the value or "". `names` holds for each GPU its uuid
    and those of its MIG devices.

    The list ends at the first entry that identifies no GPU. A repeated entry hides all GPUs.
    https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
    """
    if value is None:
        return tuple(range(len(names))), ""
    entries = [entry.strip() for entry in value.split(",")]
    if entries == [""]:
        return (), "the value is empty, which hides every GPU"
    found: list[int] = []
    for entry in entries:
        index = _device(entry, names)
        if index is None:
            return tuple(found), _problem(entry, len(names), found)
        found.append(index)
    if len(set(entries)) < len(entries):
        return (), "a GPU is listed twice, which hides every GPU"
    return tuple(found), ""


def _device(entry: str, names: Sequence[Sequence[str]]) -> int | None:
    if entry.isascii() and entry.isdigit():
        return int(entry) if int(entry) < len(names) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    matching = {index for index, own in enumerate(names) if any(name.startswith(entry) for name in own)}
    return matching.pop() if len(matching) == 1 else None


def _problem(entry: str, count: int, found: list[int]) -> str:
    problem = f"{entry!r} identifies no GPU" if entry else "an entry is empty"
    total = f" (there are {count})" if entry.isdigit() else ""
    return f"{problem}{total}, which hides " + ("this and all later entries" if found else "every GPU")
