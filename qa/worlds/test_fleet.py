"""Drawn fleets: two processes have the same job exactly if they were drawn as one."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from tests.drawn import seeds

from qa.worlds.fleet import Drawn, Fleet

Identity = tuple[str, str, str]  # kind, job, namespace
_NOTHING = ("", "", "")


class Observed:
    """The identities that a scraper of all hosts sees of each process over time."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.identities: defaultdict[Drawn, list[Identity]] = defaultdict(list)

    def run(self, seconds: float) -> None:
        """Observe each process every five seconds, while the names of pods appear."""
        fleet, end = self._fleet, self._fleet.now + seconds
        alive = {(drawn.host.number, drawn.pid): drawn for drawn in fleet.drawn}
        while fleet.now < end:
            for host in fleet.hosts:
                assert host.workloads is not None
                for due in [entry for entry in host.late if entry[0] <= fleet.now]:
                    host.late.remove(due)
                    due[1]()
                host.workloads.refresh()
            for drawn in alive.values():
                assert drawn.host.workloads is not None
                found = drawn.host.workloads.resolve(drawn.pid)
                identity = (found.job_kind, found.job, found.namespace if found.job else "")
                if not self.identities[drawn] or self.identities[drawn][-1] != identity:
                    self.identities[drawn].append(identity)
            fleet.now += 5.0


@pytest.mark.everything
@pytest.mark.timeout(600)  # all seeds are one test
@seeds(range(24))
def test_the_grouping_is_that_of_the_drawn_jobs(tmp_path: Path, seed: int) -> None:
    fleet = Fleet(tmp_path, seed, hosts=5)
    observed = Observed(fleet)
    fleet.draw(72)
    observed.run(60.0)
    fleet.restart()
    fleet.draw(12)
    observed.run(60.0)

    groups: defaultdict[Identity, set[int | None]] = defaultdict(set)
    jobs: defaultdict[int, set[Identity]] = defaultdict(set)
    for drawn, identities in observed.identities.items():
        # Names that come late make no second identity: first there is none, then the one that stays.
        assert len([identity for identity in identities if identity != _NOTHING]) <= 1, (drawn, identities)
        if drawn.job is None:
            assert identities == [_NOTHING]
            continue
        assert identities[-1] != _NOTHING, (drawn, fleet.kinds[drawn.job])
        groups[identities[-1]].add(drawn.job)
        jobs[drawn.job].add(identities[-1])

    merged = {
        identity: [fleet.kinds[job] for job in found if job is not None]
        for identity, found in groups.items()
        if len(found) > 1
    }
    split = {fleet.kinds[job]: found for job, found in jobs.items() if len(found) > 1}
    kinds = {(fleet.kinds[job], kind) for job, found in jobs.items() for kind, *_ in found}
    assert not merged
    assert not split
    assert {kind for kind, shown in kinds if kind != shown} == set()

    assert len(set(fleet.kinds.values())) >= 17
