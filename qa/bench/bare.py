"""A server of one file at any path, with Python's http.server: `python -m qa.bench.bare FILE PORT`, with FILE in gzip.

It is the least that an exporter in Python can cost.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    _Handler.body = Path(sys.argv[1]).read_bytes()
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Handler).serve_forever()
