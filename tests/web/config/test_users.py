from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import bcrypt
import pytest

from gpugauge.web.config import users as webconfig_users
from gpugauge.web.config.users import Busy, Login, Logins, parse_login

ALICE = Login(b"alice", b"secret")
USERS = {b"alice": bcrypt.hashpw(b"secret", bcrypt.gensalt(4)), b"empty": bcrypt.hashpw(b"", bcrypt.gensalt(4))}


def header(user: bytes, password: bytes) -> str:
    return "Basic " + base64.b64encode(user + b":" + password).decode()


@pytest.mark.parametrize(
    ("text", "login"),
    [
        (header(b"alice", b"secret"), ALICE),
        (header(b"alice", b"secret").replace("Basic", "bAsIc"), ALICE),
        (header(b"a", b"b:c"), Login(b"a", b"b:c")),
        (header(b"\xff", b"\x00"), Login(b"\xff", b"\x00")),
        (header(b"", b""), Login(b"", b"")),
        ("Basic " + base64.b64encode(b"alice").decode(), None),
        *((text, None) for text in (None, "", "Basic", "Basic !", "Bearer YTpi", "Basic \xfc")),
    ],
)
def test_the_header(text: str | None, login: Login | None) -> None:
    assert parse_login(text) == login


class Thread:
    """A double of bcrypt: records the hashes, and waits until `go_on` is set."""

    def __init__(self) -> None:
        self.hashes: list[bytes] = []
        self.raised = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self._real = bcrypt.checkpw

    def checkpw(self, password: bytes, hashed: bytes) -> bool:
        self.hashes.append(hashed)
        assert self.go_on.wait(10)
        try:
            return self._real(password, hashed)
        except ValueError:
            self.raised += 1
            raise


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Thread]:
    made = Thread()
    monkeypatch.setattr(bcrypt, "checkpw", made.checkpw)
    yield made
    made.go_on.set()


def run(what: Callable[[Logins], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(what(Logins()))


@pytest.mark.parametrize(
    ("login", "right"),
    [
        (ALICE, True),
        (Login(b"empty", b""), True),
        (Login(b"alice", b"Secret"), False),
        (Login(b"alice", b""), False),
        (Login(b"alice", b"secret\x00"), False),
        (Login(b"alice", b"\xff\xfe"), False),
        (Login(b"alice", b"x" * 100_000), False),
        (Login(b"bob", b"secret"), False),
        (Login(b"", b""), False),
        (Login(b"\xff", b"secret"), False),
    ],
)
def test_right_and_wrong(login: Login, right: bool) -> None:
    async def story(logins: Logins) -> None:
        assert not logins.is_remembered(USERS, login)
        assert await logins.verify(USERS, login, "a") is right
        assert logins.is_remembered(USERS, login) is right

    run(story)


def test_only_the_first_72_bytes_count_as_in_any_bcrypt() -> None:
    users = {b"long": bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4))}

    async def story(logins: Logins) -> None:
        assert await logins.verify(users, Login(b"long", b"x" * 72), "a")
        assert await logins.verify(users, Login(b"long", b"x" * 80), "a")
        assert not await logins.verify(users, Login(b"long", b"x" * 71), "a")

    run(story)


def test_only_verified_logins_are_remembered(thread: Thread) -> None:
    async def story(logins: Logins) -> None:
        for _ in range(3):
            if not logins.is_remembered(USERS, ALICE):
                await logins.verify(USERS, ALICE, "a")
            await logins.verify(USERS, Login(b"alice", b"wrong"), "a")

    run(story)
    assert len(thread.hashes) == 1 + 3


def test_another_hash_of_the_same_user_forgets_the_old_password() -> None:
    renewed = {b"alice": bcrypt.hashpw(b"new", bcrypt.gensalt(4))}

    async def story(logins: Logins) -> None:
        assert await logins.verify(USERS, ALICE, "a")
        assert not logins.is_remembered(renewed, ALICE)
        assert not await logins.verify(renewed, ALICE, "a")
        assert not logins.is_remembered({}, ALICE)

    run(story)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webconfig_users, "_MAX_REMEMBERED_LOGINS", 2)
    monkeypatch.setattr(bcrypt, "checkpw", lambda password, _: True)
    users = {b"%d" % n: b"$2b$04$" for n in range(3)}
    logins_of = [Login(name, b"") for name in users]

    async def story(logins: Logins) -> None:
        for login in logins_of:
            await logins.verify(users, login, "a")
            assert logins.is_remembered(users, logins_of[0]) or login is logins_of[2]
        # The first one was seen last before the third came, so the second one had to go … and was not the first.
        assert [logins.is_remembered(users, login) for login in logins_of] == [True, False, True]

    run(story)


def test_unknown_user_costs_as_much_as_a_known_one(thread: Thread) -> None:
    costs = {b"alice": b"$2y$04$" + b"a" * 53, b"bob": b"$2b$06$" + b"a" * 53}

    async def story(logins: Logins) -> None:
        for number in range(40):
            for _ in range(2):
                assert not await logins.verify(costs, Login(b"nobody%d" % number, b"x"), "a")

    run(story)
    assert {hashed[:7] for hashed in thread.hashes} == {b"$2b$04$", b"$2b$06$"}
    assert thread.hashes[::2] == thread.hashes[1::2]  # the same for the same name: a second request reveals nothing
    assert len(set(thread.hashes)) == 40


def test_hash_of_an_unknown_user_is_a_whole_one(thread: Thread) -> None:
    """bcrypt does the same work for it as for a user's: it computes all rounds, and compares a hash of full length.

    bcrypt.hashpw() returns the hash of a password with the salt of another hash. If it returned anything but a whole
    hash with that salt, the comparison would end early, or not begin.
    """
    real = bcrypt.hashpw(b"other", bcrypt.gensalt(4))
    users = {b"alice": real}

    async def story(logins: Logins) -> None:
        for number in range(100):
            assert not await logins.verify(users, Login(b"nobody%d" % number, b"guess"), "a")
            assert not await logins.verify(users, Login(b"alice", b"guess%d" % number), "a")

    run(story)
    assert len(thread.hashes) == 200  # one computation for each, known or not
    for hashed in set(thread.hashes) - {real}:
        computed = bcrypt.hashpw(b"guess", hashed)
        assert len(computed) == len(hashed) == len(real) == 60
        assert computed[:29] == hashed[:29]
        assert computed != hashed
    assert {hashed[:7] for hashed in thread.hashes} == {real[:7]}
    assert thread.raised == 0


@pytest.mark.parametrize("password", [b"guess", b"", b"\x00", b"a\x00b", b"\xff" * 100], ids=repr)
def test_password_that_bcrypt_refuses_is_refused_for_each_name(password: bytes, thread: Thread) -> None:
    outcomes = set()

    async def story(logins: Logins) -> None:
        for name in (b"alice", b"nobody"):
            before = thread.raised
            assert not await logins.verify(USERS, Login(name, password), "a")
            outcomes.add(thread.raised - before)

    run(story)
    assert len(outcomes) == 1


def test_waiting_logins_are_bounded_and_the_right_one_stays(thread: Thread) -> None:
    async def story(logins: Logins) -> None:
        async def guess(number: int) -> bool:
            return await logins.verify(USERS, Login(b"alice", b"%d" % number), f"10.0.{number % 20}.1")

        for number in range(20):  # each of 20 addresses has sent a wrong password
            assert not await guess(number)
        thread.go_on.clear()
        guesses = [asyncio.ensure_future(guess(number)) for number in range(100, 300)]
        await asyncio.sleep(0)
        right = asyncio.ensure_future(logins.verify(USERS, ALICE, "192.0.2.1"))
        more = [asyncio.ensure_future(guess(number)) for number in range(300, 500)]
        await asyncio.sleep(0)
        thread.go_on.set()
        assert await right
        results = await asyncio.gather(*guesses, *more, return_exceptions=True)
        checked = [result for result in results if not isinstance(result, Busy)]
        assert checked == [False] * len(checked)
        assert len(checked) <= 16 + 1

    run(story)


def test_guesses_take_a_limited_share_of_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computation of 20 ms of CPU time, measured by the clock of the thread."""
    spent = []

    def checkpw(password: bytes, hashed: bytes) -> bool:
        before = time.thread_time()
        while time.thread_time() < before + 0.02:
            pass
        spent.append(time.thread_time() - before)
        return password == b"secret"

    monkeypatch.setattr(bcrypt, "checkpw", checkpw)

    async def story(logins: Logins) -> None:
        began = time.monotonic()
        for number in range(6):
            await logins.verify(USERS, Login(b"alice", b"%d" % number), "a")
        assert sum(spent[:-1]) <= 0.27 * (time.monotonic() - began)  # the pause after the last one is not over

    run(story)


def test_an_address_without_faults_does_not_wait_while_guesses_pause(
    thread: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webconfig_users, "GUESSING_SHARE", 1e-9)

    async def story(logins: Logins) -> None:
        assert not await logins.verify(USERS, Login(b"alice", b"wrong"), "10.0.0.1")
        guess = asyncio.ensure_future(logins.verify(USERS, Login(b"alice", b"wrong, too"), "10.0.0.1"))
        neighbour = asyncio.ensure_future(logins.verify(USERS, ALICE, "10.0.0.2"))
        await asyncio.sleep(0.05)
        assert await logins.verify(USERS, Login(b"empty", b""), "10.0.1.1")
        assert not guess.done()
        assert not neighbour.done()  # of the same /24: it waits for the pause, ahead of the guess
        guess.cancel()
        neighbour.cancel()

    run(story)


def test_scrapers_that_start_together_cost_one_computation(thread: Thread) -> None:
    async def story(logins: Logins) -> None:
        thread.go_on.clear()
        tasks = [asyncio.ensure_future(logins.verify(USERS, ALICE, "a")) for _ in range(50)]
        await asyncio.sleep(0)
        thread.go_on.set()
        assert await asyncio.gather(*tasks) == [True] * 50

    run(story)
    assert len(thread.hashes) == 1


def test_the_event_loop_goes_on_while_a_password_is_checked(thread: Thread) -> None:
    async def story(logins: Logins) -> None:
        thread.go_on.clear()
        task = asyncio.ensure_future(logins.verify(USERS, ALICE, "a"))
        while not thread.hashes:
            await asyncio.sleep(0.001)
        assert not task.done()
        thread.go_on.set()
        assert await task

    run(story)


def test_an_answer_after_the_server_has_stopped_is_dropped(thread: Thread) -> None:
    thread.go_on.clear()

    async def story(logins: Logins) -> None:
        task = asyncio.ensure_future(logins.verify(USERS, ALICE, "a"))
        while not thread.hashes:
            await asyncio.sleep(0.01)
        task.cancel()

    run(story)
    thread.go_on.set()
    (worker,) = [t for t in threading.enumerate() if t.name == "bcrypt" and t.is_alive()][-1:]
    time.sleep(0.05)
    assert worker.is_alive()  # it has not ended by an exception
