"""Serves a file as /metrics by our server and does nothing else: `python -m bench.still FILE PORT`, FILE in gzip.

The limit for a daemon that has other work to do.
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
        # Who wants plain text only asks whether we are there.
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
