"""Where mgp.toml is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from defserve.errors import UsageError
from defserve.kernel.control import locate_config


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.req("MGP-15.2o")
def test_the_first_place_that_has_a_file_counts(here: Path) -> None:
    user = here / "settings"
    environ = {"XDG_CONFIG_HOME": str(user), "MGP_CONFIG_PATH": str(here / "over.toml")}
    (user / "mgp").mkdir(parents=True)
    places = [here / "given.toml", here / "over.toml", here / "mgp.toml", here / "mcp.toml", user / "mgp/servers.toml"]
    for place in places:
        place.write_text("")
    assert locate_config("given.toml", environ) == places[0]
    assert locate_config(None, environ) == places[1]
    del environ["MGP_CONFIG_PATH"]
    for place in places[2:]:
        assert locate_config(None, environ) == place
        place.unlink()
    with pytest.raises(UsageError, match="there is no mgp.toml"):
        locate_config(None, environ)


@pytest.mark.req("MGP-15.2o")
def test_a_named_file_that_does_not_exist_is_not_replaced_by_another(here: Path) -> None:
    (here / "mgp.toml").write_text("")
    with pytest.raises(UsageError, match="--config names gone"):
        locate_config("gone.toml", {})
    with pytest.raises(UsageError, match="MGP_CONFIG_PATH names gone"):
        locate_config(None, {"MGP_CONFIG_PATH": "gone.toml"})
