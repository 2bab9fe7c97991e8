"""A server with a web configuration, and its clients."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import bcrypt

from gpugauge.web.config.access import WebAccess
from gpugauge.web.server import Route, Server, sentence
from tests.certificates import Authority

TLS = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
CLIENTS = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n"
USERS = f"basic_auth_users:\n  alice: {bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n"
ALICE = "Basic " + base64.b64encode(b"alice:secret").decode()
WRONG = "Basic " + base64.b64encode(b"alice:wrong").decode()


class Site:
    """A folder with a web configuration and its certificates, and a server that uses it."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder, self.path = folder, folder / "web.yml"
        self.authority = Authority()
        (folder / "ca.pem").write_bytes(self.authority.pem)
        self.renew()
        self.path.write_text(text)
        self.access = WebAccess(self.path)
        self.server = Server(
            [("127.0.0.1", 0)], {"/metrics": Route(lambda _: sentence(200, "up 1"))}, access=self.access
        )

    def renew(self) -> None:
        self.authority.issue(self.folder, "server", "localhost", "127.0.0.1")

    @property
    def address(self) -> tuple[str, int]:
        return self.server.addresses[0]

    def client(self, name: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        if name:
            context.load_cert_chain(*self.authority.issue(self.folder, "client", name))
        return context

    def connect(self, tls: ssl.SSLContext | None = None) -> HTTPConnection:
        if tls is None:
            return HTTPConnection(*self.address, timeout=10)
        return HTTPSConnection(*self.address, timeout=10, context=tls)

    def fetch(self, tls: ssl.SSLContext | None = None, authorization: str | None = None) -> tuple[int, bytes]:
        connection = self.connect(tls)
        try:
            connection.request("GET", "/metrics", headers={"Authorization": authorization} if authorization else {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def serial(self) -> str:
        """Return the serial number of the server's certificate in a new connection."""
        with (
            socket.create_connection(self.address, timeout=10) as raw,
            self.client().wrap_socket(raw, server_hostname="127.0.0.1") as connection,
        ):
            certificate = connection.getpeercert()
            assert certificate is not None
            return str(certificate["serialNumber"])

    def check_twice(self) -> None:
        """Check the files until a change is settled."""
        self.access.check()
        self.access.check()


@contextmanager
def serving(folder: Path, text: str) -> Iterator[Site]:
    site = Site(folder, text)
    site.server.start()
    try:
        yield site
    finally:
        site.server.stop()


def wait_for(what: Callable[[], bool]) -> None:
    for _ in range(1000):
        if what():
            return
        threading.Event().wait(0.01)
    raise AssertionError("not within 10 s")
