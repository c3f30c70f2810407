from __future__ import annotations

import pytest

from tests.cli.running import Run
from tests.testing import toy


def test_a_server_runs_on_stdio_unless_told_otherwise(defserve: Run):
    assert defserve("run", "tests.testing.toy") == (0, "serving on stdio:\n", "")
    assert defserve("run", "tests.testing.toy:server", "--on", "unix:/x").out == "serving on unix:/x\n"
    assert defserve("run", "-m", "tests.testing.toy").out == "serving on stdio:\n"


def test_workers_need_an_address_that_they_can_share(defserve: Run):
    refused = defserve("run", "tests.testing.toy", "--workers", "2")
    assert refused.code == 1 and "'stdio:' has one client, so it has one process" in refused.err
    refused = defserve("run", "tests.testing.toy", "--workers", "many", "--on", "unix:/x")
    assert refused.code == 1 and "there cannot be 'many' workers" in refused.err


def test_how_to_log_is_passed_on(defserve: Run, monkeypatch: pytest.MonkeyPatch):
    chosen: list[dict[str, object]] = []
    monkeypatch.setattr(toy.server, "run", lambda **options: chosen.append(options))  # type: ignore[method-assign]
    assert defserve("run", "tests.testing.toy", "--log-level", "debug", "--log-json").code == 0
    assert chosen == [{"on": "stdio:", "log_level": "debug", "log_json": True}]


def test_the_servers_own_exit_code_is_ours(defserve: Run, monkeypatch: pytest.MonkeyPatch):
    def interrupted(on: str) -> None:
        raise SystemExit(130)

    monkeypatch.setattr(toy.server, "run", interrupted)
    assert defserve("run", "tests.testing.toy").code == 130
