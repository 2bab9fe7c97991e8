"""Requests that come again byte for byte, as those of a scraper do."""

from __future__ import annotations

from gpugauge.web.messages import Request

_MAX_REQUESTS, _MAX_BYTES = 32, 2048
_END = b"\r\n\r\n"


class Repeated(dict[bytes, Request]):
    """Requests by all of their bytes. The same bytes have the same meaning, and reading them again would take a
    quarter of the time of a scrape.
    """

    def add(self, received: bytes, request: Request) -> None:
        """Remember a GET request that arrived in one piece and has no body. The oldest one is forgotten."""
        framed = {"content-length", "transfer-encoding"} & set(request.headers)
        if request.method != "GET" or framed or len(received) > _MAX_BYTES:
            return
        # Otherwise `received` is a part of the request, and another client that sends this part would be answered.
        if received.startswith(b"GET ") and received.find(_END) == len(received) - len(_END):
            self[received] = request
            if len(self) > _MAX_REQUESTS:
                del self[next(iter(self))]
