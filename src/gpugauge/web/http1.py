"""One connection of the server: requests as h11 reads them (RFC 9112), and their replies."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
import time
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

import h11
from tornado.iostream import IOStream, StreamClosedError, UnsatisfiableReadError

from gpugauge.base.logline import fields
from gpugauge.web.messages import Reply, Request, sentence

if TYPE_CHECKING:
    from gpugauge.web.connections import Listener

log = logging.getLogger("gpugauge.server")

MAX_HEADER_BYTES = 16 * 1024
MAX_TARGET_BYTES = 8 * 1024
MAX_BODY_BYTES = 64 * 1024
# Of a body in chunks, with their sizes and extensions.
_MAX_CHUNKED_BYTES = 2 * MAX_BODY_BYTES
# Read and dropped after the last reply, so that the kernel does not reset the connection before the client has read it.
_MAX_DROPPED_BYTES = 1024 * 1024
_READ_BYTES = 16 * 1024
# A reply up to this size is copied and sent with its headers in one call; a larger one is sent without a copy.
_MAX_COPIED_REPLY_BYTES = 64 * 1024

_ABSOLUTE = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
# A name or address, and a port (RFC 3986, section 3.2.2); empty if the client has no name for the server.
_AUTHORITY = re.compile(rb"(?:\[[0-9A-Za-z.:%_~-]+\]|[0-9A-Za-z._~!$&'()*+,;=%-]*)(?::[0-9]*)?")


class Refused(Exception):  # noqa: N818  (named by what happens to the request)
    """The request cannot be understood. `reply` is the last one on its connection."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.reply = sentence(status, reason)


class Connection:
    """Serves the requests of one client, one after the other."""

    def __init__(self, stream: IOStream, remote: str, owner: Listener) -> None:
        self.remote = remote
        self._stream, self._owner = stream, owner
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Serve until one side closes the connection."""
        # Without it the kernel keeps the last part of a reply back until the client has acknowledged the one before.
        self._stream.set_nodelay(True)
        self._task = asyncio.ensure_future(self._serve())

    def close(self) -> None:
        """Close the connection at once."""
        self._stream.close()

    async def closed(self) -> None:
        """Wait until nothing runs for this connection."""
        if self._task:
            await self._task

    async def _serve(self) -> None:
        received: bytes | None = b""
        try:
            while received is not None:
                received = await self._exchange(received)
                await asyncio.sleep(0)  # requests that have arrived together do not hold up other connections
        except (StreamClosedError, UnsatisfiableReadError):
            pass
        except Exception:
            log.exception("a connection failed")
        finally:
            self._stream.close()
            self._owner.on_close(self)

    async def _exchange(self, received: bytes) -> bytes | None:
        """Serve one request. `received` is its beginning. Returns that of the next one, or None after the last one."""
        received = received or await self._stream.read_bytes(_READ_BYTES, partial=True)
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        head_only = keep = False
        try:
            head = await self._head(parser, received)
            self._owner.request_begins(self)
            head_only = head.method == b"HEAD"
            reply = await self._answered(self._request(head, await self._body(parser, head)))
            keep = parser.their_state is h11.DONE
        except Refused as refused:
            reply = refused.reply
        except h11.RemoteProtocolError as error:
            reply = _not_understood(error, parser)
            log.debug("a request was refused", extra=fields(client=self.remote, reason=str(error)[:200]))
        if self._stream.closed():  # by the client
            return None
        self._owner.reply_begins(self, reply)
        await self._write(reply, head_only, keep)
        if not keep:
            await self._drop_the_rest(parser)
            return None
        self._owner.request_ends(self, reply)
        return parser.trailing_data[0]

    async def _answered(self, request: Request) -> Reply:
        answer = self._owner.answer(request)
        if isinstance(answer, Reply):
            return answer
        self._owner.reply_pending(self)
        return await answer

    async def _head(self, parser: h11.Connection, received: bytes) -> h11.Request:
        while not (received := received.lstrip(b"\r\n")):  # empty lines before a request (RFC 9112, section 2.2)
            received = await self._stream.read_bytes(_READ_BYTES, partial=True)
            if received.isspace():
                await asyncio.sleep(0)  # a client that sends nothing else does not hold up other connections
        while True:
            parser.receive_data(received)
            if (event := parser.next_event()) is not h11.NEED_DATA:
                break
            received = await self._stream.read_bytes(_READ_BYTES, partial=True)
        assert isinstance(event, h11.Request)
        _check(event)
        return event

    async def _body(self, parser: h11.Connection, head: h11.Request) -> bytes:
        body, sent = bytearray(), 0
        if int(dict(head.headers).get(b"content-length", 0)) > MAX_BODY_BYTES:
            raise Refused(413, f"the body has more than {MAX_BODY_BYTES} bytes")
        while not isinstance(event := parser.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                body += event.data
                continue
            if parser.they_are_waiting_for_100_continue:
                await self._stream.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                parser.send(h11.InformationalResponse(status_code=100, headers=[]))
            received = await self._stream.read_bytes(_READ_BYTES, partial=True)
            sent += len(received)
            if sent > _MAX_CHUNKED_BYTES or len(body) > MAX_BODY_BYTES:
                raise Refused(413, f"the body has more than {MAX_BODY_BYTES} bytes")
            parser.receive_data(received)
            await asyncio.sleep(0)  # a client that sends without a pause does not hold up other connections
        if len(body) > MAX_BODY_BYTES:
            raise Refused(413, f"the body has more than {MAX_BODY_BYTES} bytes")
        return bytes(body)

    def _request(self, head: h11.Request, body: bytes) -> Request:
        target, headers = head.target, dict[str, str]()
        for raw_name, raw_value in head.headers:  # values of a repeated field are joined by commas (RFC 9110, 5.3)
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        if absolute := _ABSOLUTE.fullmatch(target):
            # Its host counts, and not that of the header (RFC 9112, section 3.2.2).
            target = absolute[2] if absolute[2].startswith(b"/") else b"/" + absolute[2]
            headers["host"] = absolute[1].decode("latin-1")
        path, _, query = target.decode("latin-1").partition("?")
        connection = self._stream.socket
        certificate = (connection.getpeercert() or None) if isinstance(connection, ssl.SSLSocket) else None
        return Request(head.method.decode(), path, query, headers, body, self.remote, certificate)

    async def _write(self, reply: Reply, head_only: bool, keep: bool) -> None:
        header = {
            "Content-Type": reply.content_type,
            "Content-Length": str(len(reply.body)),
            "Date": _http_date(),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            **dict(reply.headers),
        }
        if not keep:
            header["Connection"] = "close"
        lines = "".join([f"{name}: {value}\r\n" for name, value in header.items()])
        head = f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\n{lines}\r\n".encode("latin-1")
        if head_only:
            await self._stream.write(head)
        elif len(reply.body) <= _MAX_COPIED_REPLY_BYTES:
            await self._stream.write(head + reply.body)
        else:
            self._stream.write(head)
            await self._stream.write(reply.body)

    async def _drop_the_rest(self, parser: h11.Connection) -> None:
        """Close the sending half, and read what the client still sends until it closes the connection, too."""
        tls = isinstance(self._stream.socket, ssl.SSLSocket)
        all_read = parser.their_state is h11.MUST_CLOSE and not parser.trailing_data[0]
        if self._stream.closed() or (tls and all_read):  # TLS has no half that can be closed alone
            return
        self._owner.last_reply_sent(self)
        if not tls:
            with suppress(OSError):
                self._stream.socket.shutdown(socket.SHUT_WR)
        dropped = 0
        while dropped < _MAX_DROPPED_BYTES:
            dropped += len(await self._stream.read_bytes(_READ_BYTES, partial=True))
            await asyncio.sleep(0)


def _check(head: h11.Request) -> None:
    """Raise Refused for what h11 admits: RFC 9112 forbids it, or allows a server to refuse it."""
    names = [name for name, _ in head.headers]
    hosts = [value for name, value in head.headers if name == b"host"]
    if not head.http_version.startswith(b"1."):
        raise Refused(505, "this server speaks HTTP/1.1")
    if len(head.target) > MAX_TARGET_BYTES:
        raise Refused(414, f"the target has more than {MAX_TARGET_BYTES} bytes")
    if sum(len(name) + len(value) + 4 for name, value in head.headers) > MAX_HEADER_BYTES:
        raise Refused(431, f"the headers have more than {MAX_HEADER_BYTES} bytes")
    if len(hosts) > 1 or not all(map(_AUTHORITY.fullmatch, hosts)):
        raise Refused(400, "the Host header is no host and port")
    # Two recipients may disagree where such a request ends: request smuggling (RFC 9112, sections 6.1 and 11.2).
    if b"transfer-encoding" in names and (b"content-length" in names or head.http_version == b"1.0"):
        raise Refused(400, "Transfer-Encoding with Content-Length or in HTTP/1.0")
    absolute = _ABSOLUTE.fullmatch(head.target)
    if absolute:
        if not absolute[1] or not _AUTHORITY.fullmatch(absolute[1]):
            raise Refused(400, "the target has no host, or a user")
    elif head.method == b"CONNECT":
        raise Refused(405, "this server is no proxy")
    elif not head.target.startswith(b"/") and (head.method, head.target) != (b"OPTIONS", b"*"):
        raise Refused(400, "the target is neither a path nor a URL")


def _http_date() -> str:
    """Return the time now as IMF-fixdate (RFC 9110); email.utils, which has it, would load a dozen modules."""
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())


def _not_understood(error: h11.RemoteProtocolError, parser: h11.Connection) -> Reply:
    if error.error_status_hint != HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
        return sentence(error.error_status_hint, str(error)[:200])
    if b"\n" not in parser.trailing_data[0]:
        return sentence(414, f"the target has more than {MAX_TARGET_BYTES} bytes")
    return sentence(431, f"the headers have more than {MAX_HEADER_BYTES} bytes")
