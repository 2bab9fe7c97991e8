"""Many cases in one test: those that a seed draws, and those of a table."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

import pytest

EVERYTHING = bool(os.environ.get("GPUGAUGE_EVERYTHING"))
"""Whether all cases are drawn: `make everything`."""
OF_TESTS = ("GPUGAUGE_EVERYTHING", "GPUGAUGE_SEED")
"""Variables that a daemon does not know."""
SECONDS = 120
"""The longest time of a value that a seed draws."""
_SHARE = 5
"""One of so many seeds is drawn at a push, on each day another one."""
_TODAY = datetime.now(timezone.utc).toordinal()
Decorator: TypeAlias = "Callable[[Callable[..., None]], Callable[..., None]]"


def draws(push: int, everything: int) -> Sequence[int]:
    """Return the seeds 0 to `everything`, or, at a push, `push` of them, others on each day."""
    return range(everything) if EVERYTHING else [(_TODAY * push + number) % everything for number in range(push)]


def seeds(values: Iterable[int], name: str = "seed") -> Decorator:
    """Return a decorator that runs a test once for each value of its argument `name` (at a push, for each fifth one of
    many), with a `tmp_path` and a `monkeypatch` of its own. A failure names the value; with GPUGAUGE_SEED only that
    one is run.
    """
    drawn = list(values)
    if "GPUGAUGE_SEED" in os.environ:
        chosen = [int(os.environ["GPUGAUGE_SEED"])]
    else:
        chosen = drawn if EVERYTHING or len(drawn) < _SHARE else drawn[_TODAY % _SHARE :: _SHARE]
    in_one = _in_one([({name: value}, f"{name} {value}", f" (GPUGAUGE_SEED={value} repeats it)") for value in chosen])

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        limited: Callable[..., None] = pytest.mark.timeout(SECONDS * len(chosen))(in_one(test))
        return limited

    return decorate


def cases(names: str | tuple[str, ...], rows: Iterable[Any]) -> Decorator:
    """Return a decorator that runs a test once for each row of values of its arguments `names`, as `parametrize` does,
    but all in one test, each with a `tmp_path` and a `monkeypatch` of its own and an empty `caplog`. Other fixtures
    are shared. A failure names the row.
    """
    if isinstance(names, str):
        return _in_one([({names: value}, f"{names} {value!r}", "") for value in rows])
    return _in_one([(dict(zip(names, row, strict=True)), f"case {row!r}", "") for row in rows])


def _in_one(chosen: list[tuple[dict[str, Any], str, str]]) -> Decorator:
    """Return the decorator of a test with the arguments of each case, its name, and a remark on a failure."""
    assert chosen

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        names = chosen[0][0].keys()
        others = [parameter for parameter in signature.parameters.values() if parameter.name not in names]
        missing = ", ".join(names - signature.parameters.keys())
        assert not missing, f"{test.__name__} has no argument {missing}"

        @functools.wraps(test)
        def all_cases(**arguments: Any) -> None:
            print(f"{test.__name__}: {', '.join(case for _, case, _ in chosen)}")
            for number, (values, case, remark) in enumerate(chosen):
                with pytest.MonkeyPatch.context() as patch:
                    own = arguments | values
                    if "monkeypatch" in own:
                        own["monkeypatch"] = patch
                    if "caplog" in own:
                        own["caplog"].clear()
                    if isinstance(path := own.get("tmp_path"), Path):
                        own["tmp_path"] = path / str(number)
                        (path / str(number)).mkdir()
                    try:
                        test(**own)
                    except (Exception, pytest.fail.Exception) as error:
                        raise AssertionError(f"{case} of {test.__name__}{remark}: {error}") from error

        all_cases.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]  # read by pytest
        del all_cases.__wrapped__
        return all_cases

    return decorate
