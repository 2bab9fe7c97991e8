"""Pods in a PodList or PartialObjectMetadataList: what identifies them, and their controller."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpugauge.workload.controllers import Pod
from gpugauge.workload.controllers.owners import LABELS, OwnerReference
from gpugauge.workload.identity import clean

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
# In the API a static pod has another UID than on its node, where it is this hash.
_MIRROR = "kubernetes.io/config.mirror"


def pods(text: str) -> Iterator[tuple[str, Pod]]:
    """Yield each pod by its UID on the node; entries that are no pods are left out. Raises ValueError.

    One pod is decoded at a time: all of a large list together take ten times the memory of its text.
    """
    for item in _items(text):
        metadata = item.get("metadata") if isinstance(item, dict) else None
        if isinstance(metadata, dict) and (pod := _pod(metadata)):
            yield pod.uid, pod


def _pod(metadata: Mapping[str, Any]) -> Pod | None:
    annotations = _texts(metadata.get("annotations"))
    namespace, name, own = (metadata.get(key) for key in ("namespace", "name", "uid"))
    uid = annotations.get(_MIRROR) or own
    if not all(isinstance(value, str) and value for value in (namespace, name, uid)):
        return None
    labels = {key: clean(value) for key, value in _texts(metadata.get("labels")).items() if key in LABELS and value}
    return Pod(clean(str(namespace)), clean(str(name)), str(uid), labels, "metadata", _owner(metadata))


def _owner(metadata: Mapping[str, Any]) -> OwnerReference | None:
    references = metadata.get("ownerReferences")
    for reference in references if isinstance(references, list) else ():
        if isinstance(reference, dict) and reference.get("controller") is True:
            found = _texts(reference)
            group = found.get("apiVersion", "").rpartition("/")[0]
            if found.get("kind") and found.get("name"):
                return OwnerReference(clean(group), clean(found["kind"]), clean(found["name"]))
    return None


def _texts(value: Any) -> dict[str, str]:
    return {k: v for k, v in value.items() if isinstance(v, str)} if isinstance(value, dict) else {}


def _items(text: str) -> Iterator[Any]:
    """Yield the entries of `items` in the JSON object, one at a time. Raises ValueError."""
    at = _after(text, 0, "{")
    while True:
        key, at = _DECODER.raw_decode(text, _skip(text, at))
        at = _skip(text, _after(text, at, ":"))
        if key == "items":
            break
        _, at = _DECODER.raw_decode(text, at)
        at = _after(text, at, ",")
    if text.startswith("null", at):
        return
    at = _skip(text, _after(text, at, "["))
    while not text.startswith("]", at):
        item, at = _DECODER.raw_decode(text, at)
        yield item
        at = _skip(text, at)
        if not text.startswith("]", at):
            at = _skip(text, _after(text, at, ","))


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _after(text: str, at: int, sign: str) -> int:
    at = _skip(text, at)
    if not text.startswith(sign, at):
        raise ValueError(f"{sign!r} is missing at character {at}")
    return at + 1
