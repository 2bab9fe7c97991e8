"""Drawn container images: what a Python sees with gpugauge's device is what it sees without it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.deviceplugin.test_files import show
from tests.drawn import EVERYTHING

from gpugauge.deviceplugin import plugin

USER_PACKAGES = f".local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
FEATURES = ("user packages", "usercustomize", "sitecustomize", "PYTHONPATH")


def image(home: Path, features: frozenset[str]) -> dict[str, str]:
    """Make an image with these features, and return the variables of its environment."""
    user, path = home / USER_PACKAGES, home / "app"
    path.mkdir()
    if "user packages" in features:
        user.mkdir(parents=True)
        (user / "mark_user.py").touch()
        (user / "own.pth").write_text(f"{path}/more\nimport mark_user\n")
        (path / "more").mkdir()
    for name, place in (("usercustomize", user), ("sitecustomize", path)):
        if name in features:
            place.mkdir(parents=True, exist_ok=True)
            (place / f"mark_{name}.py").touch()
            (place / f"{name}.py").write_text(f"import mark_{name}\n")
    return {"PYTHONPATH": f"{path}:/nowhere"} if "PYTHONPATH" in features else {}


@pytest.mark.everything
@settings(max_examples=16 if EVERYTHING else 5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.frozensets(st.sampled_from(FEATURES)))
def test_a_program_sees_its_own_environment(features: frozenset[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        home.mkdir()
        hook = plugin.install(Path(folder))
        variables = image(home, features)
        without = show(home, **variables)
        with_hook = show(home, **variables, PYTHONUSERBASE=str(hook / "user"))
    bootstrap = f"{hook}/gpugauge/hook/bootstrap"
    expected = {"PYTHONPATH": ":".join(filter(None, [bootstrap, variables.get("PYTHONPATH")]))}

    assert without.pop("armed") is without["child"].pop("armed") is False
    assert with_hook.pop("armed") is with_hook["child"].pop("armed") is True
    assert without.pop("variables") == variables
    assert with_hook.pop("variables") == with_hook["child"].pop("variables") == expected
    del without["child"]["variables"]
    # If the image has no module of a name, the hook's own is the one that is loaded.
    for seen in (with_hook, with_hook["child"]):
        seen["customized"] = [path for path in seen["customized"] if not path.startswith(str(hook))]
    assert with_hook == without
