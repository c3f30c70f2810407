"""`make cluster` in small: the machines and the wire, and one short run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from random import Random

import pytest

from tests.attack.trial import MissingFeature
from tests.chaos.families.clocks import library
from tests.cluster import machines
from tests.cluster.campaign import Campaign
from tests.cluster.cluster import NotPossible, check_programs
from tests.cluster.machines import Network, NoMachines
from tests.cluster.schedule import deal
from tests.faults.process import ROOT
from tests.waiting import wait_until

PORT = 8000
ANSWERS = (
    "import socket as s\nl=s.create_server(('0.0.0.0',8000))\nwhile 1:\n c,_=l.accept();c.sendall(b'yes');c.close()"
)
ASKS = "import socket as s,sys\nc=s.create_connection((sys.argv[1],8000),1);c.settimeout(1);print(c.recv(9).decode())"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def network() -> Iterator[Network]:
    """Two machines, of which `b` answers `yes`."""
    made = Network(["a", "b"])
    try:
        made.make()
    except NoMachines as error:
        made.remove()
        pytest.skip(str(error))
    plan = {
        name: {"own": made.address(name), "wire": made.wire_address(name), "ports": [PORT]} for name in made.names[:-1]
    }
    command = [sys.executable, "-m", "tests.cluster.wire", json.dumps({"machines": plan})]
    wire = made.start("wire", command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert wire.stdin is not None and wire.stdout is not None
    try:
        assert wire.stdout.readline() == b"up\n"
        made.start("b", [sys.executable, "-c", ANSWERS])
        wait_until(lambda: ask(made) == "yes")
        yield made
    finally:
        made.remove()
        wire.stdin.close()
        wire.stdout.close()


def ask(network: Network) -> str:
    """What b answers to a; empty if nothing comes."""
    return network.run("a", [sys.executable, "-ISc", ASKS, network.wire_address("b")]).stdout.strip()


def test_what_one_machine_sends_another_can_be_cut_in_each_direction(network: Network):
    for sender, receiver in (("a", "b"), ("b", "a")):
        network.drop(sender, receiver)
        assert ask(network) == ""
        network.heal()
        assert ask(network) == "yes"
    network.isolate("b")
    assert ask(network) == ""


def test_nothing_leads_out_of_a_machine(network: Network):
    routes = network.run("a", ["ip", "route"]).stdout.splitlines()
    assert routes and all(route.startswith("10.77.") for route in routes)


def test_machines_of_a_process_that_is_gone_are_removed(network: Network, monkeypatch: pytest.MonkeyPatch):
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left = f"{machines.PREFIX}-{int(done.stdout)}-0-a"
    subprocess.run(["ip", "netns", "add", left], check=True)
    machines.remove_leftovers()
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert left not in listed and network.namespace("a") in listed


def test_a_deck_is_dealt_to_its_end():
    cards = deal(Random(1), "abc")
    assert sorted(next(cards) for _ in range(3)) == sorted(next(cards) for _ in range(3)) == ["a", "b", "c"]


def test_a_cluster_keeps_its_promises_while_it_is_torn_apart():
    campaign = Campaign(3, 0.5, only={"worker dies", "cut", "postgres fails over"}, official=False)
    try:
        check_programs()
        library()
        result = campaign.run()
    except (NotPossible, NoMachines, MissingFeature) as error:
        pytest.skip(str(error))
    assert result.violations == []
    assert sum(result.faults.values()) >= 1
    assert {("append", "ok"), ("emit", "ok"), ("wipe", "ok"), ("task", "ok")} <= set(result.operations)
