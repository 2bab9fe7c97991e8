"""Wrong HTTP requests, by what is wrong with them, and the statuses that RFC 9110, 9112 and 6585 let answer them."""

from __future__ import annotations

_CHUNKED = b"Transfer-Encoding: chunked"


def _of(*lines: bytes, start: bytes = b"POST /echo HTTP/1.1", host: bool = True, rest: bytes = b"") -> bytes:
    return b"\r\n".join([start, *([b"Host: x"] if host else []), *lines, b"", b""]) + rest


def _lines(*variants: bytes) -> list[bytes]:
    return [_of(line) for line in variants]


def _starts(*variants: bytes) -> list[bytes]:
    return [_of(start=start) for start in variants]


def _chunks(*variants: bytes) -> list[bytes]:
    return [_of(_CHUNKED, rest=chunks) for chunks in variants]


_HOSTS = (b"a b", b"a/b", b"u@x", b"[::1", b"x:y", b"x:80:80", b"\xe9", b"x,y z")
_LENGTHS = (b"", b"-1", b"+5", b"0x5", b"5 5", b"5a", b"\xb2", b"1" * 30, b"5;", b"5, 6", b"5,")
_CODINGS = (b"gzip", b"xchunked", b"chunked, gzip", b"gzip, chunked", b"", b"\x0bchunked", b"chunked;q=1", b"chunked,")
_TARGETS = (
    *(b"/\x00", b"/\x7f", b"/\xff", b"*", b"a", b"x:80", b"?q", b"//[", b"ftp://x/", b"http:///", b"http://u@x/"),
    *(b"http://a b/", b"http://x:y/", b"mailto:x", b"http:/x"),
)
_SIZES = (b"x", b"-1", b"0x1", b"+1", b" 1", b"", b"1 ;\x00", b"g;a", b"1_0", b"1,1")

FAULTS: dict[str, tuple[set[int], list[bytes]]] = {
    "no Host": ({400}, [_of(host=False), _of(host=False, start=b"GET http://x/ HTTP/1.1")]),
    "two Hosts": ({400}, _lines(b"Host: x", b"hOST: y", b"Host:")),
    "a wrong Host": ({400}, [_of(b"Host: " + host, host=False) for host in _HOSTS]),
    "lengths that differ": ({400}, [_of(b"Content-Length: 5", b"Content-Length: 6")]),
    "a length": ({400, 413}, _lines(*(b"Content-Length: " + length for length in _LENGTHS))),
    "length and chunks": (
        {400},
        [
            _of(b"Content-Length: 5", _CHUNKED, rest=b"0\r\n\r\n"),
            _of(_CHUNKED, b"Content-Length: 5", rest=b"0\r\n\r\n"),
        ],
    ),
    "a coding": ({400, 501}, _lines(*(b"Transfer-Encoding: " + coding for coding in _CODINGS))),
    "two codings": ({400, 501}, [_of(_CHUNKED, b"Transfer-Encoding: identity"), _of(_CHUNKED, _CHUNKED)]),
    "chunks in HTTP/1.0": ({400}, [_of(_CHUNKED, start=b"POST / HTTP/1.0", rest=b"0\r\n\r\n")]),
    "space before the colon": ({400}, _lines(b"Content-Length : 5", b"Transfer-Encoding : chunked", b"X\t: y")),
    "a line without a name": ({400}, _lines(b"word", b": x", b"a b")),
    "a name": ({400}, _lines(b"a(b: c", b"a b: c", b"\xe9: c", b'"a": c', b"a\x00: c", b"a\rb: c")),
    "a control character": ({400}, _lines(b"X: a\x00b", b"X: a\rb", b"X: a\x0bb", b"X: \x00", b"X: a\r\rb")),
    "a fold without a line": ({400}, [b"GET / HTTP/1.1\r\n folded: x\r\nHost: x\r\n\r\n"]),
    "another version": (
        {400, 505},
        _starts(b"GET / HTTP/2.0", b"GET / HTTP/3.0", b"GET / HTTP/0.9", b"GET / HTTP/9.9"),
    ),
    "no version": (
        {400},
        _starts(
            *(b"GET / http/1.1", b"GET / HTTP/1", b"GET / HTTP/1.1x", b"GET / HTTP/1.1 ", b"GET / HTTP/11"),
            *(b"GET / HTP/1.1", b"GET / HTTP/ 1.1", b"GET / ICE/1.0", b"GET /", b"GET", b"GET / HTTP/1.1\x00"),
        ),
    ),
    "no method": (
        {400},
        _starts(b" / HTTP/1.1", b"G\x01T / HTTP/1.1", b"G(T / HTTP/1.1", b"\xe9 / HTTP/1.1", b"/ HTTP/1.1"),
    ),
    "spaces": ({400}, _starts(b"GET  / HTTP/1.1", b"GET /  HTTP/1.1", b"GET\t/ HTTP/1.1", b"GET /a b HTTP/1.1")),
    "a target": ({400}, _starts(*(b"GET " + target + b" HTTP/1.1" for target in _TARGETS if target != b"//["))),
    "a tunnel": ({400, 405}, _starts(b"CONNECT x:443 HTTP/1.1", b"CONNECT / HTTP/1.1")),
    "a long target": ({414}, _starts(*(b"GET /" + b"a" * size + b" HTTP/1.1" for size in (8192, 20_000, 70_000)))),
    "a long header": ({431}, _lines(*(b"X: " + b"a" * size for size in (17_000, 70_000)))),
    "a long name": ({431}, _lines(*(b"a" * size + b": x" for size in (17_000, 70_000)))),
    "many headers": ({431}, [_of(*(b"X-%d: y" % n for n in range(count))) for count in (2000, 9000)]),
    "a long body": (
        {413},
        [
            _of(b"Content-Length: 65537", rest=bytes(100)),
            _of(b"Content-Length: 99999999999999", rest=bytes(100)),
            _of(b"Content-Length: 70000", b"Expect: 100-continue"),
            *_chunks(b"".join([b"1000\r\n" + bytes(4096) + b"\r\n"] * 17) + b"0\r\n\r\n"),
            *_chunks(b"1;aaaaaaaaaa\r\nb\r\n" * 9000),
        ],
    ),
    "a chunk size": ({400}, _chunks(*(size + b"\r\na\r\n0\r\n\r\n" for size in _SIZES))),
    "a long chunk size": ({400, 413}, _chunks(b"1" * 30 + b"\r\na\r\n0\r\n\r\n")),
    "a chunk that ends wrongly": (
        {400},
        _chunks(*(b"1\r\na" + end + b"0\r\n\r\n" for end in (b"b\r\n", b"XX0", b"\rx", b"\nxx"))),
    ),
    "another protocol": (
        {400, 505},
        [
            *(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            *(b"SSH-2.0-x\r\n\r\n", b"GET /\r\n\r\n", b"*1\r\n$4\r\nPING\r\n\r\n"),
        ],
    ),
}
