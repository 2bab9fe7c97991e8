"""A server that answers as the daemon of a drawn node does: its metrics and its status."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from qa.worlds.nodes import Node

from gpugauge.exposition.text import Lines
from tests.simulation import status

Answers = Mapping[str, tuple[int, str]]


def answers_of(node: Node) -> dict[str, tuple[int, str]]:
    """Return status and body by path."""
    snapshot, rendered = node.snapshot(), Lines()
    metrics = "".join(rendered.of(family) for section in snapshot.sections for family in section.families)
    return {"/metrics": (200, metrics), "/api/v1/status": (200, json.dumps(status(snapshot, node.history())))}


@contextmanager
def serving(answers: Answers) -> Iterator[str]:
    """Serve the answers, 404 for other paths; yields the address of the metrics."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = answers.get(self.path, (404, "not found"))
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()
