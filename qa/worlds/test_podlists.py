"""Drawn lists: each pod has the job of its controller, and no pod that claims to belong to a job is part of it."""

from __future__ import annotations

import json

import pytest
from tests.drawn import seeds

from gpugauge.workload.controllers import Pod
from gpugauge.workload.job import JobFacts, resolve
from gpugauge.workload.kubernetes.source import pods
from qa.worlds.podlists import draw

# What the processes of every pod claim.
FORGED = {"MASTER_ADDR": "train-worker-0.train", "JOB_COMPLETION_INDEX": "0", "RAY_CLUSTER_NAME": "train"}


def identity(pod: Pod) -> tuple[str, str, str]:
    job = resolve(JobFacts(FORGED, pod_uid=pod.uid, pod=pod))
    return job.namespace, job.kind, job.name


@seeds(range(40))
def test_every_pod_has_the_job_that_it_was_drawn_for(seed: int) -> None:
    drawn = draw(seed)

    assert {uid: identity(pod) for uid, pod in pods(drawn.body()).items()} == drawn.truth


def test_every_kind_of_controller_is_drawn() -> None:
    kinds = {kind for seed in range(5) for _, kind, _ in draw(seed).truth.values()}

    assert kinds >= {"job", "jobset", "pytorchjob", "mpijob", "volcano", "raycluster", "leaderworkerset"}
    assert kinds >= {"statefulset", "deployment", "pod"}


@seeds(range(10))
def test_a_list_that_is_cut_is_an_error(seed: int) -> None:
    drawn = draw(seed, 9)
    body = drawn.body()
    items = body.index("[", body.index('"items": ['))
    _, end = json.JSONDecoder().raw_decode(body, items)
    for cut in (items, end - 1, drawn.random.randrange(end)):
        with pytest.raises(ValueError):  # noqa: PT011  (the text is json's)
            pods(body[:cut])


def test_other_texts_are_errors() -> None:
    for text in ("", "null", "[]", "{", "{}", '{"items": 7}', '{"items": [1', '{"kind": "Status"}', "x"):
        with pytest.raises(ValueError):  # noqa: PT011  (the text is json's)
            raise AssertionError(text, pods(text))


def test_a_list_may_be_empty() -> None:
    texts = ('{"items": []}', '{"items": null}', '{"kind": "PodList", "items": null, "x": 1}')

    assert [pods(text) for text in texts] == [{}] * 3
