"""Waiting logins under drawn attackers, in simulated time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gpugauge.web.config.users import MAX_WAITING, MAX_WAITING_PER_PREFIX, WaitingLogins
from tests.drawn import seeds

HASH_SECONDS = (0.001, 0.06, 0.25, 1.0, 4.0)  # of bcrypt, by its cost
ADDRESSES = 20
SCRAPE_SECONDS = 15.0
HONEST = "192.0.2.7"


# By kind of attacker: its next address.
ATTACKERS: dict[str, Callable[[random.Random], str]] = {
    "twenty": lambda chance: f"10.{chance.randrange(ADDRESSES)}.0.1",
    "one site": lambda chance: f"198.51.100.{chance.randrange(1, 255)}",
    "the /24 of the scraper": lambda chance: f"192.0.2.{chance.randrange(100, 120)}",
    "loopback": lambda chance: f"127.{chance.randrange(256)}.{chance.randrange(256)}.{chance.randrange(256)}",
    "a /64": lambda chance: f"2001:db8:1:1::{chance.randrange(1, 1 << 16):x}",
    "a /48": lambda chance: f"2001:db8:1:{chance.randrange(1 << 16):x}::{chance.randrange(1, 1 << 16):x}",
}


def is_verified(attacker: Callable[[random.Random], str], seed: int, honest: str = HONEST) -> bool:
    """Return whether a right login from an unknown address is verified at the second try, or once each address of the
    attackers has been computed. They send wrong passwords as often as they can: up to 30 in the time of a computation.

    At the first try right after a restart, the attackers may not have been seen to be wrong yet.
    """
    chance = random.Random(seed)
    waiting: WaitingLogins[str] = WaitingLogins(chance)
    rate, seconds = chance.choice([1, 3, 10, 30]), chance.choice(HASH_SECONDS)
    now, next_try, honest_waits = 0.0, chance.uniform(0, 5), False
    until = 2 * SCRAPE_SECONDS + (ADDRESSES + 4) * seconds
    while now < until:
        order = [False] * rate
        if now >= next_try and not honest_waits:
            order.insert(chance.randrange(rate + 1), True)
            next_try, honest_waits = now + SCRAPE_SECONDS, True
        for right in order:
            leaving = waiting.put("right" if right else "wrong", honest if right else attacker(chance), now)
            honest_waits = honest_waits and leaving != "right"
        assert len(waiting._waiting) <= MAX_WAITING
        taken = waiting.take(now)
        assert taken is not None
        now += seconds
        if taken[0] == "right":
            return True
        waiting.fault(taken[1], now)
    return False


@pytest.mark.parametrize("attacker", ATTACKERS)
@seeds(range(25))
def test_a_right_login_from_an_unknown_address_is_verified_at_the_second_try(attacker: str, seed: int) -> None:
    assert is_verified(ATTACKERS[attacker], seed)


@seeds(range(25))
def test_a_scraper_of_this_machine_shares_no_turn_with_other_addresses_of_it(seed: int) -> None:
    """A program of this machine sends wrong passwords from 20 loopback addresses, and not from that of the scraper."""
    assert is_verified(lambda chance: f"127.0.0.{chance.randrange(2, 2 + ADDRESSES)}", seed, "127.0.0.1")


def test_one_prefix_displaces_only_itself() -> None:
    waiting: WaitingLogins[str] = WaitingLogins(random.Random(1))
    assert waiting.put("other", "2001:db8:2::1", 0) is None
    left = [waiting.put("mine", f"2001:db8:1:1::{number:x}", 0) for number in range(1, 100)]
    assert left.count(None) == MAX_WAITING_PER_PREFIX
    assert set(left[MAX_WAITING_PER_PREFIX:]) == {"mine"}
    assert len(waiting._waiting) == 1 + MAX_WAITING_PER_PREFIX


def test_among_equals_chance_decides_who_leaves_and_who_is_next() -> None:
    left, first = set(), set()
    for seed in range(200):
        waiting: WaitingLogins[int] = WaitingLogins(random.Random(seed))
        for number in range(MAX_WAITING + 1):
            leaving = waiting.put(number, f"10.0.{number}.1", 0)
        left.add(leaving)
        taken = waiting.take(0)
        assert taken is not None
        first.add(taken[0])
    assert left == first == set(range(MAX_WAITING + 1))


def test_a_fault_is_forgiven_and_no_more_than_an_hour_is_kept() -> None:
    waiting: WaitingLogins[str] = WaitingLogins()
    waiting.fault("10.0.0.1", 0)
    waiting.put("forgiven", "10.0.0.1", 599)
    assert waiting.take(599, without_faults=True) is None
    assert waiting.take(600) == ("forgiven", "10.0.0.1")
    waiting.put("forgiven", "10.0.0.1", 600)
    assert waiting.take(600, without_faults=True) == ("forgiven", "10.0.0.1")
    for _ in range(1000):
        waiting.fault("10.0.0.1", 1000)
    waiting.put("after an hour", "10.0.0.1", 1000)
    assert waiting.take(4599, without_faults=True) is None
    waiting.put("after an hour", "10.0.0.1", 4600)
    assert waiting.take(4600, without_faults=True) is not None


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("127.0.0.1", "127.9.8.7", False),
        ("2001:db8::1", "2001:db8:0:0:ffff::", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_prefixes(one: str, other: str, together: bool) -> None:
    waiting: WaitingLogins[str] = WaitingLogins()
    waiting.fault(one, 0)
    for number in range(2):
        waiting.put(f"other {number}", other, 0)
    left = waiting.put("one", one, 0)
    assert (left is not None) is together


def test_an_address_whose_password_was_wrong_meanwhile_waits_behind_the_others() -> None:
    waiting: WaitingLogins[str] = WaitingLogins(random.Random(1))
    for number in range(5):
        waiting.put(f"guess {number}", f"10.{number}.0.1", 0.0)
        waiting.fault(f"10.{number}.0.1", 1.0)
    waiting.put("scraper", "192.0.2.1", 0.5)

    assert waiting.take(2.0) == ("scraper", "192.0.2.1")
    assert waiting.take(2.0, without_faults=True) is None
