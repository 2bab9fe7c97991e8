"""A kubelet that lists pods over TLS, as Go's server does: HTTP/1.0 is answered in HTTP/1.0, without chunks."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.certificates import Authority


@dataclass
class FakeKubelet:
    """The behaviour of the server: `status` and `body`, or silence after `silent_after` bytes until `released`."""

    port: int
    authority: Path
    body: str = '{"items": []}'
    status: int = 200
    silent_after: int | None = None
    released: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str]] = field(default_factory=list)  # path, Authorization
    accepts: list[str] = field(default_factory=list)


@contextmanager
def serving(folder: Path, name: str = "127.0.0.1") -> Iterator[FakeKubelet]:
    """Serve with a certificate for `name`."""
    authority = Authority("the cluster")
    (folder / "ca.crt").write_bytes(authority.pem)
    certificate, key = authority.issue(folder, "kubelet", name)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.requests.append((self.path, self.headers.get("Authorization", "")))
            fake.accepts.append(self.headers.get("Accept", ""))
            body = fake.body.encode()
            self.send_response(fake.status)
            self.send_header("content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: fake.silent_after])
            if fake.silent_after is not None:
                fake.released.wait(20)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client that refuses the certificate is what some tests expect."""

    with Quiet(("127.0.0.1", 0), Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        fake = FakeKubelet(server.server_address[1], folder / "ca.crt")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield fake
        finally:
            fake.released.set()
            server.shutdown()
            thread.join()
