"""An mgp.toml made from a client's settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from defserve.base.secret_references import SecretReader
from defserve.errors import UsageError
from defserve.kernel.client_import import ClientSettings, Imported, convert_client_settings, load_client_settings
from defserve.kernel.config.entries import ServerEntry
from defserve.kernel.config.loading import load_kernel_config


def converted(folder: Path, entries: dict[str, Any]) -> tuple[Imported, dict[str, ServerEntry]]:
    made = convert_client_settings(ClientSettings(folder / ".mcp.json", folder, entries))
    (folder / "mgp.toml").write_text(made.text, encoding="utf-8")
    return made, {entry.id: entry for entry in load_kernel_config(folder / "mgp.toml").servers}


def test_a_command_and_an_address_are_taken_over(tmp_path: Path) -> None:
    made, servers = converted(
        tmp_path,
        {
            "my files": {"command": "npx", "args": ["-y", "files", "${workspaceFolder}"], "env": {"MODE": 'a"b\\c'}},
            "wiki": {"type": "http", "url": "https://wiki.example.org/mcp", "headers": {"X-Team": "${env:TEAM:-docs}"}},
        },
    )
    files, wiki = servers["my-files"], servers["wiki"]
    assert (files.launch.command, files.launch.args) == ("npx", ("-y", "files", str(tmp_path)))
    assert files.launch.env == {"MODE": 'a"b\\c'}
    assert files.prefix == "my-files"
    assert wiki.launch.url == "https://wiki.example.org/mcp"
    assert wiki.launch.headers == {"X-Team": "${TEAM:-docs}"}
    assert made.variables == made.left_out == []


def test_literal_secrets_are_kept_out_and_named(tmp_path: Path) -> None:
    made, servers = converted(
        tmp_path,
        {
            "a": {
                "command": "a",
                "args": ["--token", "hunter2a", "--api-key=hunter2b"],
                "env": {"A_TOKEN": "hunter2c"},
            },
            "b": {"command": "b", "env": {"A_TOKEN": "hunter2d", "LOOK": "Bearer hunter2eeeeee"}},
            "c": {
                "url": "https://c.example.org/mcp",
                "headers": {"authorization": "Bearer hunter2f", "X-Api-Key": "hunter2g"},
            },
            "d": {"url": "https://u:hunter2h@d.example.org/mcp"},
        },
    )
    assert "hunter2" not in made.text
    assert "hunter2" not in repr(made)
    assert servers["a"].launch.args == ("--token", "${TOKEN}", "--api-key=${API_KEY}")
    assert servers["a"].launch.env == {"A_TOKEN": "${A_TOKEN}"}
    assert servers["b"].launch.env["A_TOKEN"] == "${B_A_TOKEN}"
    assert servers["c"].launch.auth_token == "${C_TOKEN}"
    assert len(made.variables) == 8


SECRET = "hunter2hunter2hunter2"
PLACES: dict[str, Any] = {
    "a default": {"command": "a", "env": {"MODE": f"${{MY_TOKEN:-{SECRET}}}"}},
    "a default that looks so": {"command": "a", "env": {"MODE": f"${{MINE:-ghp_{SECRET}}}"}},
    "a default of a secret name": {"command": "a", "env": {"API_KEY": f"${{MINE:-{SECRET}}}"}},
    "beside a user": {"command": "a", "env": {"DB": f"postgres://${{USER}}:{SECRET}@db/x"}},
    "before a variable": {"command": "a", "env": {"DB": f"postgres://{SECRET}:{SECRET}@${{HOST}}/x"}},
    "a default in a password": {"command": "a", "env": {"DB": f"postgres://u:${{PASSWORD:-{SECRET}}}@db/x"}},
    "around a secret": {"command": "a", "env": {"A_TOKEN": f"${{ONE}}{SECRET}"}},
    "an argument": {"command": "a", "args": [f"--token=${{ONE}}{SECRET}"]},
    "the default of an argument": {"command": "a", "args": ["--token", f"${{ONE:-{SECRET}}}"]},
    "a variable of docker": {"command": "docker", "args": ["run", "-e", f"API_KEY=${{X:-{SECRET}}}"]},
    "a connection in an argument": {"command": "a", "args": [f"postgres://${{USER}}:{SECRET}@db"]},
    "the command": {"command": f"/bin/a?token={SECRET}${{X}}"},
    "a header": {"url": "https://a.example.org/mcp", "headers": {"X-Api-Key": f"${{A}}-{SECRET}"}},
    "a bearer": {"url": "https://a.example.org/mcp", "headers": {"Authorization": f"Bearer ${{A:-{SECRET}}}"}},
    "half a bearer": {"url": "https://a.example.org/mcp", "headers": {"Authorization": f"Bearer {SECRET}${{A}}"}},
    "basic": {"url": "https://a.example.org/mcp", "headers": {"Authorization": f"Basic {SECRET}=${{A:-x}}"}},
    "any header": {"url": "https://a.example.org/mcp", "headers": {"X-Link": f"https://${{U}}:{SECRET}@b"}},
    "a password of the address": {"url": f"https://${{USER}}:{SECRET}@a.example.org/mcp"},
    "a user of the address": {"url": f"https://{SECRET}@${{HOST:-a.example.org}}/mcp"},
    "a query": {"url": f"https://${{HOST:-a.example.org}}/mcp?api_key={SECRET}"},
    "a key in a query": {"url": f"https://${{HOST:-a.example.org}}/mcp?x=1&key={SECRET}"},
    "a query beside a variable": {"url": f"https://a.example.org/mcp?token=${{A}}{SECRET}"},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_beside_a_variable_or_in_its_default_is_kept_out(tmp_path: Path, place: str) -> None:
    made, servers = converted(tmp_path, {"a": PLACES[place]})
    assert SECRET not in made.text
    assert SECRET not in repr(servers)
    assert made.variables, "a person is told what to set"


@pytest.mark.parametrize(
    "entry",
    [
        {"env": {"DB": "postgres://${USER}:${PASSWORD}@db/${NAME:-notes}"}},
        {"env": {"API_KEY": "${ONE}:${TWO}", "HOME_DIR": "${HOME:-/root}/x", "A_TOKEN": "${A_TOKEN:-}"}},
        {"args": ["--token", "${TOKEN}", "--key=${KEY}", "${DIR:-/tmp}/a", "--header", "Authorization: Bearer ${T}"]},
        {"env": {"LEVEL": "${LEVEL:-debug}", "URL": "https://u@${HOST:-h}/?page=2&token=${T}"}},
    ],
)
def test_variables_beside_which_no_secret_stands_are_left_as_they_are(tmp_path: Path, entry: dict[str, Any]) -> None:
    made, servers = converted(tmp_path, {"a": {"command": "a", **entry}})
    assert made.variables == []
    launch = servers["a"].launch
    assert dict(launch.env) == entry.get("env", {})
    assert list(launch.args) == entry.get("args", [])


def test_what_names_a_variable_already_is_left_as_it_is(tmp_path: Path) -> None:
    made, servers = converted(
        tmp_path,
        {"a": {"url": "https://a.example.org/mcp", "headers": {"Authorization": "Bearer ${A_KEY}"}},
         "b": {"url": "https://b.example.org/mcp", "bearer_token_env_var": "B_KEY"}},
    )  # fmt: skip
    assert servers["a"].launch.auth_token == "${A_KEY}"
    assert servers["b"].launch.auth_token == "${B_KEY}"
    assert made.variables == []


def test_what_is_copied_from_a_client_reads_no_file_and_starts_no_program(tmp_path: Path) -> None:
    """Editors mean something else by these words."""
    args = ["${command:touch x}", "--in=${file:/etc/passwd}"]
    _, entries = converted(tmp_path, {"a": {"command": "x", "args": args}})
    launch = entries["a"].launch
    assert launch.list_secret_references() == []
    assert list(launch.fill_variables({}, SecretReader(run=lambda words: b"run")).args) == args


def test_an_approval_of_the_client_grants_nothing(tmp_path: Path) -> None:
    made, servers = converted(tmp_path, {"a": {"command": "a", "autoApprove": ["delete"], "alwaysAllow": ["x"]}})
    assert "# autoApprove, alwaysAllow of the client grants nothing here" in made.text
    assert servers["a"].mgp is None


def test_what_asks_a_person_becomes_a_variable_to_set(tmp_path: Path) -> None:
    made, servers = converted(tmp_path, {"a": {"command": "a", "env": {"K": "${input:api-key}"}}})
    assert servers["a"].launch.env == {"K": "${INPUT_API_KEY}"}
    assert "export INPUT_API_KEY=" in made.text


def test_what_is_disabled_stays_so_and_what_cannot_be_is_left_out_with_its_reason(tmp_path: Path) -> None:
    made, servers = converted(
        tmp_path,
        {
            "off": {"command": "a", "disabled": True},
            "old": {"type": "sse", "url": "https://old.example.org/events"},
            "older": {"type": "sse", "url": "https://old.example.org/sse"},
            "none": {},
            "odd\n[x]": 1,
        },
    )
    assert not servers["off"].enabled
    assert set(servers) == {"off", "older"}
    assert made.left_out == ["old", "none", "odd\n[x]"]
    assert "# old was left out: it speaks HTTP+SSE" in made.text


def test_names_that_become_equal_are_told_apart(tmp_path: Path) -> None:
    _, servers = converted(tmp_path, {"a b": {"command": "a"}, "a/b": {"command": "b"}, "…": {"command": "c"}})
    assert set(servers) == {"a-b", "a-b-2", "server"}


def test_the_settings_are_found_by_file_and_by_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode" / "mcp.json").write_text('{"servers": {"a": {"command": "a"}}} // comment')
    (tmp_path / "config.toml").write_text('[mcp_servers.b]\ncommand = "b"\n')
    for source in (".vscode/mcp.json", "vscode"):
        found = load_client_settings(source)
        assert (set(found.entries), found.folder) == ({"a"}, tmp_path)
    assert set(load_client_settings("config.toml").entries) == {"b"}
    (tmp_path / "empty.json").write_text("{}")
    for source, problem in (
        ("empty.json", "has no servers"),
        ("gone.json", "there is no file"),
        ("mcp-json", "has no"),
    ):
        with pytest.raises(UsageError, match=problem):
            load_client_settings(source)


TEXT = st.text(max_size=12)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "command": TEXT,
        "args": st.lists(TEXT, max_size=3),
        "env": st.dictionaries(TEXT, TEXT, max_size=3),
        "url": TEXT.map("https://example.org/".__add__) | TEXT,
        "headers": st.dictionaries(TEXT, TEXT, max_size=3),
        "cwd": TEXT,
        "type": TEXT,
        "disabled": st.booleans(),
        "autoApprove": st.lists(TEXT, max_size=1),
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=st.dictionaries(TEXT, ENTRY | TEXT, max_size=4))
@example(entries={"wiki": {"url": "https://example.org/mcp\n"}})
def test_whatever_a_client_has_the_result_can_be_read(tmp_path: Path, entries: dict[str, Any]) -> None:
    made, servers = converted(tmp_path, json.loads(json.dumps(entries)))
    assert len(servers) + len(made.left_out) == len(entries)
