"""The pods of this node from its kubelet or the cluster's API: a bounded request (HTTP/1.0, so that the answer ends
with the connection) with the pod's token, which no proxy may see.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpugauge.workload.controllers import Pod
from gpugauge.workload.controllers.owners import LABELS, OwnerReference
from gpugauge.workload.identity import clean

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
# In the API a static pod, which belongs to its Node, has another UID than on the node, where it is this hash.
_MIRROR = "kubernetes.io/config.mirror"


def pods(text: str, wanted: Collection[str] | None = None) -> dict[str, Pod]:
    """Return the pods, or the wanted ones, by their UID on the node. Raises ValueError. Of those that claim the UID of
    a static pod, its own wins. One is decoded at a time: all together take ten times the memory of the text.
    """
    found: dict[str, Pod] = {}
    mirrors: dict[str, Pod] = {}
    for item in _items(text):
        metadata = item.get("metadata") if isinstance(item, dict) else None
        if isinstance(metadata, dict) and (pod := _pod(metadata)) and (wanted is None or pod.uid in wanted):
            (found if pod.uid == metadata["uid"] else mirrors)[pod.uid] = pod
    return mirrors | found


def _pod(metadata: Mapping[str, Any]) -> Pod | None:
    namespace, name, own = (metadata.get(key) for key in ("namespace", "name", "uid"))
    if not all(isinstance(value, str) and value for value in (namespace, name, own)):
        return None
    owner = _owner(metadata)
    static = owner is not None and (owner.group, owner.kind) == ("", "Node")
    uid = (_texts(metadata.get("annotations")).get(_MIRROR) if static else "") or own
    labels = {key: clean(value) for key, value in _texts(metadata.get("labels")).items() if key in LABELS and value}
    return Pod(clean(str(namespace)), clean(str(name)), str(uid), labels, "metadata", owner)


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


KUBELET_PORT = 10250
_MAX_BYTES = 32 << 20
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class PodSourceError(Exception):
    """The pods are not known. The message is one sentence with the reason and what to do."""


@dataclass(frozen=True, slots=True)
class PodSource:
    """A server that lists the pods of this node. The token and the authority are read for each request: they rotate."""

    server: str  # in words
    host: str
    port: int
    path: str
    accept: str
    right: str  # that the ServiceAccount needs
    token: Path
    authority: Path | None  # certificates that sign the server's; None accepts every certificate
    name: str  # that the server's certificate is for
    timeout: float = 5.0
    max_bytes: int = _MAX_BYTES

    def pods(self, wanted: Collection[str]) -> dict[str, Pod]:
        """Return those of the wanted pods, by UID, that are on this node. Raises PodSourceError."""
        try:
            status, body = self._exchange()
        except TimeoutError:
            raise PodSourceError(f"{self.server} does not answer within {self.timeout:g} s") from None
        except ssl.SSLCertVerificationError as error:
            advice = "set kubernetes.kubelet_ca_file" if self.port == KUBELET_PORT else "mount the cluster's ca.crt"
            raise PodSourceError(
                f"the certificate of {self.server} is not valid ({error.verify_message}): {advice}"
            ) from None
        except OSError as error:
            raise PodSourceError(f"{self.server} cannot be asked: {error.strerror or error}") from None
        if status == 401:
            raise PodSourceError(f"{self.server} refuses the token (401): it expired, or the API server is not reached")
        if status == 403:
            raise PodSourceError(f"{self.server} refuses ({status}): the ServiceAccount needs {self.right}")
        if status != 200:
            raise PodSourceError(f"{self.server} answers {status} instead of a list of pods")
        try:
            return pods(body, wanted)
        except (ValueError, RecursionError):
            raise PodSourceError(f"the answer of {self.server} is no list of pods") from None

    def _exchange(self) -> tuple[int, str]:
        """Return status and body. Raises OSError and PodSourceError."""
        end = time.monotonic() + self.timeout
        try:
            token = self.token.read_text(encoding="ascii", errors="strict").strip()
        except (OSError, UnicodeError):
            raise PodSourceError(
                f"{self.token} is not readable: the pod needs the token of its ServiceAccount"
            ) from None
        host = f"[{self.host}]" if ":" in self.host else self.host
        request = (
            f"GET {self.path} HTTP/1.0\r\nHost: {host}:{self.port}\r\nAccept: {self.accept}\r\n"
            f"Authorization: Bearer {token}\r\n\r\n"
        )
        content = bytearray()
        with (
            socket.create_connection((self.host, self.port), self.timeout) as plain,
            self._context().wrap_socket(plain, server_hostname=self.name) as connection,
        ):
            connection.sendall(request.encode())
            while True:
                remaining = end - time.monotonic()
                if remaining <= 0:
                    raise TimeoutError
                connection.settimeout(remaining)
                part = connection.recv(1 << 16)
                if not part:
                    break
                content += part
                if _complete(content):  # a server may keep the connection open
                    break
                if len(content) > self.max_bytes:
                    raise PodSourceError(f"the answer of {self.server} has more than {self.max_bytes} bytes")
        head, _, body = content.partition(b"\r\n\r\n")
        status = head[9:12]
        if not head.startswith(b"HTTP/1.") or not status.isdigit():
            raise PodSourceError(f"the answer of {self.server} is no HTTP")
        return int(status), body.decode(errors="replace")

    def _context(self) -> ssl.SSLContext:
        if self.authority is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            return context
        try:
            return ssl.create_default_context(cafile=str(self.authority))
        except OSError as error:  # also ssl.SSLError
            reason = error.strerror or error
            raise PodSourceError(f"the certificates in {self.authority} cannot be used: {reason}") from None


def _complete(content: bytearray) -> bool:
    """Return whether an answer has all bytes that its head announces."""
    end = content.find(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length:[ \t]*(\d{1,18})[ \t]*\r\n", content[: end + 2], re.IGNORECASE)
    return end >= 0 and length is not None and len(content) - end - 4 >= int(length[1])


def of_kubelet(address: str, name: str, account: Path, authority: Path | None, *, verify: bool) -> PodSource:
    """Return the source for the kubelet of a node; its certificate is for `name`. `account` has the token."""
    return PodSource(
        *("the kubelet", address, KUBELET_PORT, "/pods", "application/json"),
        "get of nodes/pods, before Kubernetes 1.33 get of nodes/proxy",
        account / "token",
        (authority or account / "ca.crt") if verify else None,
        name,
    )


def of_api(host: str, port: int, node: str, account: Path) -> PodSource:
    """Return the source for the API of the cluster: metadata only, from the server's cache."""
    path = f"/api/v1/pods?fieldSelector={quote(f'spec.nodeName={node}')}&resourceVersion=0"
    return PodSource(
        *("the API server", host, port, path, _METADATA, "list of pods"), account / "token", account / "ca.crt", host
    )
