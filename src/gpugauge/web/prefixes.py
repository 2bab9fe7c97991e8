"""Prefixes of client addresses: what one client can have of them for nothing."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


@lru_cache(4096)
def prefix(address: str) -> str:
    """Return the IPv4 address, or the /64 of an IPv6 address, of which a client has all addresses."""
    return _network(address, 32, 64)


@lru_cache(4096)
def sender(address: str) -> str:
    """Return the same, but for a loopback address itself: a wrong password counts against one of them."""
    return _network(address, 32, 64, loopback4=32)


@lru_cache(4096)
def site(address: str) -> str:
    """Return the /24 of an IPv4 address, or the /48 of an IPv6 address, which a provider assigns to one customer."""
    return _network(address, 24, 48)


def _network(address: str, length4: int, length6: int, loopback4: int = 8) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            return str(ipaddress.IPv6Network((parsed, length6), strict=False))
        parsed = parsed.ipv4_mapped  # of a socket for both protocols
    return str(ipaddress.IPv4Network((parsed, loopback4 if parsed.is_loopback else length4), strict=False))
