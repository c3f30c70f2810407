"""One trial: a driver is run with a plan, and what it tells is judged feature by feature."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.conformance.suite_install import node
from tests.peers.features import FEATURES
from tests.peers.isolation import environment
from tests.peers.peer import Peer, Way

TRIAL_SECONDS = 180
DRIVERS = Path(__file__).with_name("drivers")


@dataclass
class Outcome:
    """What became of one peer on one way: for each feature `ok`, or what is wrong."""

    peer: Peer
    way: Way
    features: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def surprises(self) -> list[str]:
        """What is neither right nor a fault of the peer that is known; and known faults that are gone."""
        found: list[str] = []
        if "nothing was told" in self.features.get("connect", ""):
            return [f"{self.peer.name}, {self.way}: {self.features['connect']}"]
        for feature, said in self.features.items():
            known = self.peer.fault(self.way, feature)
            if said != "ok" and not known:
                found.append(f"{self.peer.name}, {self.way}: {feature}: {said}")
            elif said == "ok" and known:
                found.append(f"{self.peer.name}, {self.way}: {feature} works; take the fault out of catalogue.py")
        return found

    @property
    def known(self) -> list[str]:
        """The peer's own faults that were met."""
        faults = (self.peer.fault(self.way, name) for name, said in self.features.items() if said != "ok")
        return [f"{self.peer.name}, {self.way}: {what}" for what in dict.fromkeys(f.what for f in faults if f)]


async def tried(peer: Peer, way: Way, places: Mapping[str, Any]) -> Outcome:
    """Run the peer's driver. What it should have told and did not is wrong, with the end of what it complained of."""
    places = {**places, **places["kernel"]} if peer.role == "kernel" else places
    plan = {**places, "transport": way.transport, "version": way.version, "package": str(peer.package.folder)}
    plan["features"] = peer.features_on(way)
    token = places.get("tokens", {}).get(peer.name)
    plan["headers"] = {"Authorization": f"Bearer {token}"} if token else {}
    plan["node"] = str(node())
    program = [sys.executable if peer.runs_here else str(peer.package.program), str(DRIVERS / peer.driver)]
    with TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as home:
        told, complaints = await _run([*program, json.dumps({**plan, **peer.settings})], home, TRIAL_SECONDS)
    outcome = Outcome(peer, way)
    for line in told.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            word = json.loads(line)
            outcome.features[word["feature"]] = _problem(plan, **word) or "ok"
    for feature in peer.features_on(way):
        outcome.features.setdefault(feature, f"nothing was told; the driver said: {complaints.strip()[-400:]!r}")
    return outcome


def _problem(plan: Mapping[str, Any], feature: str, saw: Any) -> str | None:
    return FEATURES[feature].problem(saw, sorted(plan.get("tour", {}).get(feature, ())))


async def _run(command: list[str], home: str, seconds: float) -> tuple[str, str]:
    """What it prints to each of its two outputs. After so many seconds it is ended, with all that it started."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment(home),
        cwd=home,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    reading = asyncio.create_task(process.communicate())
    done, _ = await asyncio.wait([reading], timeout=seconds)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    told, complaints = await reading
    late = "" if done else f"\nit did not end within {seconds:g} s"
    return told.decode(errors="replace"), complaints.decode(errors="replace") + late
