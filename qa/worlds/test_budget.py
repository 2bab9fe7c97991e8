"""The budget of series with drawn sessions, and with the largest that a thousand processes may send."""

from __future__ import annotations

import random
from collections import Counter

from tests.drawn import seeds
from tests.sessions.test_budget import connection, exported, maximal

from gpugauge.sessions.budget import PLAIN_SERIES, Budget
from gpugauge.sessions.connection import Connection
from gpugauge.sessions.store import Store
from gpugauge.wire import messages as wire


def opened(store: Store, uid: int, name: str, snap: wire.Snap) -> Connection:
    made = connection(uid, name, f"/user-{uid}")
    store.open(made, wire.Hello(name, 1))
    store.update(made, snap)
    return made


def test_maximal_snapshots_of_a_thousand_sessions_are_bounded() -> None:
    store = Store(300.0, 2048, Budget(series=5000, series_by_owner=3000))
    honest = wire.Snap("h" * 32, 1, devices=(wire.Device(0, "GPU-1", 10),))
    opened(store, 1, "h" * 32, honest)
    for number in range(1024):
        opened(store, 2, f"{number:032}", maximal(f"{number:032}"))
    opened(store, 3, "n" * 32, wire.Snap("n" * 32, 1, devices=honest.devices))
    shown = {s.hello.session: s for s in store.view()}
    assert exported(*shown.values()) < 5000
    assert shown["h" * 32].snap == honest  # whole
    assert shown["n" * 32].snap is not None
    assert shown["n" * 32].snap.devices  # a user who came later, too
    assert store.counters().cut["user"] > 900
    assert store.counters().cut["all"] == 0


@seeds(range(5))
def test_no_limit_is_exceeded_whatever_the_sessions_do(seed: int) -> None:
    draw = random.Random(seed)
    budget = Budget(series=4000, series_by_owner=1500)
    held: dict[str, tuple[int, str, int]] = {}
    for _ in range(3000):
        name = str(draw.randrange(80))
        if name in held and draw.random() < 0.3:
            budget.release(name)
            del held[name]
            continue
        uid, cgroup, _ = held.get(name, (draw.randrange(4), f"/{draw.randrange(4)}", 0))
        wanted = PLAIN_SERIES + draw.randrange(400)
        place = budget.place(name, uid, cgroup, wanted)
        assert place.series in (wanted, PLAIN_SERIES, 0)
        held[name] = (uid, cgroup, place.series)
        users, cgroups = Counter[int](), Counter[str]()
        for owner, group, series in held.values():
            users[owner] += series
            cgroups[group] += series
        assert max(*users.values(), *cgroups.values()) <= 1500
        assert sum(users.values()) <= 8000
