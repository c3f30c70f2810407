"""What a driver tells is judged; what it leaves out, and a driver that hangs, count against the peer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers import trial
from tests.peers.packages import Package
from tests.peers.peer import HTTP, STDIO, Fault, Peer
from tests.peers.tours import by_feature
from tests.peers.trial import Outcome, tried

pytestmark = pytest.mark.anyio

PACKAGE = Package("pip", "nobody", "1")
LATE = Fault((STDIO,), ("call",), "it is late.", "a clock.")


def a_peer(driver: Path, *features: str, faults: tuple[Fault, ...] = ()) -> Peer:
    return Peer("nobody", "client", PACKAGE, str(driver), (STDIO,), features, faults, runs_here=True)


async def test_what_is_told_is_judged_and_what_is_not_told_is_wrong(tmp_path: Path):
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import json\n"
        "print('some chatter')\n"
        "for feature, saw in {'connect': True, 'call': '6', 'no such feature': 1}.items():\n"
        "    print(json.dumps({'feature': feature, 'saw': saw}))\n"
        "raise SystemExit('it broke')\n"
    )
    outcome = await tried(a_peer(driver, "connect", "call", "list"), STDIO, {})
    assert outcome.features["connect"] == "ok"
    assert outcome.features["call"] == "saw '6', not '5'"
    assert "it broke" in outcome.features["list"]
    assert set(outcome.features) == {"connect", "call", "list"}


async def test_a_driver_that_hangs_is_ended_and_what_it_told_before_counts(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 1)
    driver = tmp_path / "driver.py"
    driver.write_text(
        'import signal\nprint(\'{"feature": "connect", "saw": true}\', flush=True)\nsignal.pause()\n',
    )
    outcome = await tried(a_peer(driver, "connect", "call"), STDIO, {})
    assert outcome.features["connect"] == "ok"
    assert "did not end within 1 s" in outcome.features["call"]


def test_only_what_nobody_knew_of_is_a_surprise():
    peer = a_peer(Path("x"), "connect", "call", faults=(LATE,))
    assert Outcome(peer, STDIO, {"connect": "ok", "call": "saw None"}).surprises == []
    (news,) = Outcome(peer, HTTP, {"connect": "ok", "call": "saw None"}).surprises
    assert news == "nobody, http 2025-11-25: call: saw None"
    (stale,) = Outcome(peer, STDIO, {"connect": "ok", "call": "ok"}).surprises
    assert "call works; take the fault out" in stale


async def test_a_feature_of_several_servers_is_right_if_all_of_them_are_told(tmp_path: Path):
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import json, sys\n"
        "told = {'logs': ['desk', 'shop'], 'roots': ['desk: nothing came', 'shop'], 'completion': []}\n"
        "for feature, saw in told.items():\n"
        "    print(json.dumps({'feature': feature, 'saw': saw}))\n"
    )
    tour = by_feature({name: {feature: {} for feature in ("logs", "roots", "completion")} for name in ("shop", "desk")})
    outcome = await tried(a_peer(driver, "logs", "roots", "completion"), STDIO, {"tour": tour})
    assert outcome.features["logs"] == "ok"
    assert outcome.features["roots"] == "saw ['desk: nothing came', 'shop'], not ['desk', 'shop']"
    assert outcome.features["completion"] == "saw [], not ['desk', 'shop']"
