from __future__ import annotations

import logging
from pathlib import Path

import pytest

from defserve.cli.target_connection import suppress_repeated_logs
from defserve.proxying import mounts
from tests.cli.running import Run

HUB = """
import sys
from defserve import Command, Server

server = Server("hub", "1")
server.mount(Command(sys.executable, "-c", {code!r}), prefix="other")
"""


@pytest.mark.slow
def test_a_mounted_server_that_hangs_is_named(defserve: Run, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mounts, "LIST_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(mounts, "STOP_SECONDS", 0.1)
    Path("hub.py").write_text(HUB.format(code="import time; time.sleep(1000)"))
    code, out, _ = defserve("list", "hub.py")
    assert (code, out.splitlines()[1:]) == (0, ["", "Not connected", "  other  it is being started"])


@pytest.mark.slow
def test_a_mounted_server_that_exits_is_named_and_its_last_words_are_told_once(
    defserve: Run, folder: Path, caplog: pytest.LogCaptureFixture
):
    Path("hub.py").write_text(HUB.format(code="import sys; sys.exit('no key')"))
    out = defserve("list", "hub.py").out
    assert "\nNot connected\n  other  it " in out  # does not run, or is being restarted
    assert "no tools, resources" not in out
    assert sum("no key" in record.getMessage() for record in caplog.records) == 1


def test_the_log_says_the_same_thing_once_and_other_things_too(caplog: pytest.LogCaptureFixture):
    log = logging.getLogger("defserve.proxying")
    with suppress_repeated_logs():
        for name in ("a", "a", "b"):
            log.warning("server %r: error", name)
    log.warning("server %r: error", "a")
    assert [record.getMessage()[-10:] for record in caplog.records] == ["'a': error", "'b': error", "'a': error"]
