"""A receiver of notifications: https://prometheus.io/docs/alerting/latest/configuration/#webhook_config."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Alert = dict[str, Any]


@dataclass
class Webhook:
    """The notifications that an HTTP server on the loopback address received, with their paths."""

    url: str
    notifications: list[tuple[str, dict[str, Any]]]

    def alerts(self) -> list[Alert]:
        return [alert for _, notification in self.notifications for alert in notification["alerts"]]


@contextlib.contextmanager
def webhook() -> Iterator[Webhook]:
    notifications: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            notifications.append((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Log no requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Webhook(f"http://127.0.0.1:{server.server_port}", notifications)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
