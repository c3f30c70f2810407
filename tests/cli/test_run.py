from __future__ import annotations

from collections.abc import Callable

from tests.cli.conftest import Outcome

Run = Callable[..., Outcome]


def test_a_server_runs_on_stdio_unless_told_otherwise(defserve: Run):
    assert defserve("run", "tests.testing.toy") == (0, "serving on stdio:\n", "")
    assert defserve("run", "tests.testing.toy:server", "--on", "unix:/x").out == "serving on unix:/x\n"
    assert defserve("run", "-m", "tests.testing.toy").out == "serving on stdio:\n"
