"""The pods of this node from its kubelet, or from the cluster's API: one bounded request with the pod's token.

The request is HTTP/1.0, so that the answer ends with the connection. No proxy is used: it would receive the token.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gpugauge.workload.controllers import Pod
from gpugauge.workload.kubernetes.podlist import pods

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
        if status in {401, 403}:
            raise PodSourceError(f"{self.server} refuses ({status}): the ServiceAccount needs {self.right}")
        if status != 200:
            raise PodSourceError(f"{self.server} answers {status} instead of a list of pods")
        try:
            return {uid: pod for uid, pod in pods(body) if uid in wanted}
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
        request = (
            f"GET {self.path} HTTP/1.0\r\nHost: {self.host}\r\nAccept: {self.accept}\r\n"
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
