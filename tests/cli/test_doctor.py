from __future__ import annotations

import json
import platform
import re
import socket
import tomllib
from pathlib import Path

import pytest

import defserve as defserve_package
from defserve.base.version import VERSION
from defserve.cli.commands import doctor
from tests.cli.running import Run
from tests.listening import find_free_port
from tests.rows import for_each_row

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(autouse=True)
def home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("HOME", "USERPROFILE", "APPDATA", "XDG_CONFIG_HOME", "CODEX_HOME"):
        monkeypatch.setenv(variable, str(folder / "home"))
    return folder / "home"


def found(defserve: Run, *argv: str) -> dict[tuple[str, str], dict[str, str]]:
    return {(each["group"], each["name"]): each for each in json.loads(defserve("doctor", "--json", *argv).out)}


def test_a_healthy_installation_is_said_to_be_one(defserve: Run):
    code, out, _ = defserve("doctor")
    assert code == 0
    assert f"ok  python         {platform.python_version()}" in out and VERSION in out and "!!" not in out
    assert f"{VERSION} at {Path(defserve_package.__file__).parent}\n" in out


def finding(state: doctor.State) -> doctor.DoctorFinding:
    return doctor.DoctorFinding("Extras", "redis", state, "needs redis", "pip install redis")


@for_each_row(
    ("states", "last"),
    [
        (["ok"], "All good."),
        (["ok", "unused"], "All good. Lines with -- only matter if you use them."),
        (["ok", "unused", "missing"], "1 problem to fix."),
        (["broken", "missing"], "2 problems to fix."),
    ],
)
def test_the_last_line_is_the_verdict(states: list[doctor.State], last: str):
    assert list(doctor.iter_finding_lines([finding(state) for state in states]))[-2:] == ["", last]


def test_what_is_not_used_is_no_reproach():
    unused, missing = (list(doctor.iter_finding_lines([finding(state)])) for state in ("unused", "missing"))
    assert not any("fix:" in line for line in unused)
    assert any("fix:" in line for line in missing)


def test_an_extra_that_is_missing_says_what_to_type(defserve: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(doctor.EXTRAS, "http", ("websockets", "no_such_module"))
    finding = found(defserve)["Extras", "http"]
    assert finding["state"] == "unused" and finding["about"].startswith("needs no_such_module: ")
    assert finding["fix"].endswith('install "defserve[http]"')


def test_a_dependency_that_is_missing_is_a_fault(defserve: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "NEEDED", ("pydantic", "no_such_module"))
    code, out, _ = defserve("doctor")
    assert code == 1
    assert "!!  dependencies   no_such_module" in out and "pip install --upgrade defserve" in out


def test_settings_of_clients_are_counted_and_broken_ones_found(defserve: Run, home: Path):
    Path(".mcp.json").write_text('{"mcpServers": {"a": {}, "b": {}}} // two\n')
    (home / ".cursor").mkdir(parents=True)
    (home / ".cursor" / "mcp.json").write_text("{,}")
    seen = found(defserve)
    assert "(2 servers)" in seen["Client settings", "claude-code"]["about"]
    assert seen["Client settings", "cursor"]["state"] == "broken"
    assert defserve("doctor").code == 1


def test_a_port_that_is_taken_is_said_so(defserve: Run):
    port = str(find_free_port())
    with socket.create_server(("127.0.0.1", int(port))):
        assert found(defserve, "--port", port)["Ports", port]["state"] == "missing"
    assert found(defserve, "--port", port)["Ports", port]["state"] == "ok"


def test_every_extra_and_dependency_of_the_project_is_looked_at():
    made_of_others = {"all", "test"}
    assert set(doctor.EXTRAS) == set(PROJECT["optional-dependencies"]) - made_of_others
    names = [
        re.split(r"[^\w-]", each)[0].replace("-", "_").replace("pyyaml", "yaml") for each in PROJECT["dependencies"]
    ]
    assert sorted(module.lower() for module in doctor.NEEDED) == sorted(names)


def test_the_version_names_what_it_runs_on(defserve: Run):
    assert defserve("version").out.startswith(f"defserve {VERSION}, {platform.python_implementation()} ")
    about = json.loads(defserve("version", "--json").out)
    assert (about["defserve"], about["python"]) == (VERSION, platform.python_version())


def test_the_sets_that_hosts_switch_off_by_default_are_told(defserve: Run, folder: Path):
    (folder / "memory.py").write_text(
        """from defserve import Server
from defserve.live import Turn
server = Server("memory")
usual = server.feature_set("memory.usual", "Retrieve")
special = server.feature_set("memory.special", "Retrieve")
@usual.before_inference
def recall(turn: Turn) -> str:
    return "tea"
@special.before_inference(positions=["system"])
def rule(turn: Turn) -> str:
    return "tea"
"""
    )
    told = found(defserve, "memory.py")
    assert {name: each["state"] for (_, name), each in told.items()} == {
        "memory.usual": "ok",
        "memory.special": "missing",
    }
    special = told["feature sets", "memory.special"]
    assert "inject.system" in special["about"] and special["fix"]
    (folder / "plain.py").write_text("from defserve import Server\nserver = Server('plain')\n")
    assert "no feature sets" in defserve("doctor", "plain.py").out
    assert defserve("doctor", "missing.py").code == 1


@pytest.mark.parametrize(
    ("variables", "state"),
    [
        ({}, "unused"),
        ({"DEFSERVE_SECRET": "s" * 32}, "missing"),
        ({"DEFSERVE_SECRET": "s" * 32, "DEFSERVE_NAMESPACE": "staging"}, "ok"),
    ],
)
def test_two_deployments_of_one_name_are_told_that_they_need_a_namespace(
    variables: dict[str, str], state: str, monkeypatch: pytest.MonkeyPatch
):
    for name in ("DEFSERVE_SECRET", "DEFSERVE_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = doctor._namespace()
    assert found.state == state and "DEFSERVE_NAMESPACE" in found.about
    assert ("DEFSERVE_NAMESPACE" in found.fix) == (state == "missing")


def test_of_a_kernel_it_says_which_servers_are_started_for_each_call(defserve: Run, folder: Path):
    servers = {"plain": "", "together": 'per = "shared"', "ready": "spares = 4"}
    text = "".join(f'[[servers]]\nid = "{id}"\ncommand = "x"\n{more}\n' for id, more in servers.items())
    (folder / "mgp.toml").write_text(text + '[[servers]]\nid = "far"\nurl = "https://a.example/mcp"\n')
    states = {name: each["state"] for (_, name), each in found(defserve, "mgp.toml").items()}
    assert states == {"plain": "missing", "together": "ok", "ready": "ok", "far": "ok"}
    assert 'per = "shared"' in found(defserve, "mgp.toml")[doctor.KERNEL, "plain"]["fix"]
    (folder / "mgp.toml").write_text(f'[kernel]\nkeys = "keys.json"\n{text}')
    assert {each["state"] for each in found(defserve, "mgp.toml").values()} == {"ok"}


def test_of_a_group_of_kernels_it_says_what_other_machines_would_miss(defserve: Run, folder: Path):
    def find_states(settings: str, group: str) -> dict[str, str]:
        (folder / "mgp.toml").write_text(f"[kernel]\n{settings}\n[kernel.group]\n{group}\n")
        rows = found(defserve, "mgp.toml").items()
        return {name: each["state"] for (kind, name), each in rows if kind == doctor.GROUP}

    assert find_states("", 'store = "sqlite:///a.db"') == {"store": "missing", "link": "ok"}
    assert find_states("", 'store = "postgres://a/b"') == {"store": "ok", "link": "missing"}
    whole = find_states('keys = "keys.json"\naudit = "redis://a"', 'store = "${STORE}"\nlink = "${HOST_ADDRESS}:8300"')
    assert whole == {"store": "ok", "link": "ok", "keys": "missing"}
