"""A server of one file at /metrics: `python -m qa.bench.still FILE PORT`, with FILE in gzip.

It uses our server and does nothing else, which is the lower limit for the latency of the daemon.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from gpugauge.exposition.render import OPENMETRICS
from gpugauge.web.server import Reply, Request, Route, Server


def main(path: str, port: int) -> None:
    body, headers = Path(path).read_bytes(), (("Vary", "Accept, Accept-Encoding"), ("Content-Encoding", "gzip"))

    def answer(request: Request) -> Reply:
        # A request without gzip is the check whether the server has started.
        return (
            Reply(200, body, OPENMETRICS, headers)
            if "gzip" in request.headers.get("Accept-Encoding", "")
            else Reply(200, b"")
        )

    sys.setswitchinterval(0.001)  # as the daemon does
    Server([("127.0.0.1", port)], {"/metrics": Route(answer)}).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
