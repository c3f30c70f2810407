from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest

from defserve.auth.api_keys import VARIABLE, ApiKeys
from defserve.auth.principals import ApiKeyPrincipal
from tests.cli.running import Run


@pytest.fixture(autouse=True)
def pepper(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0123456789abcdef")


def test_a_key_is_shown_once_and_alone_on_stdout(defserve: Run):
    code, out, err = defserve("keys", "create", "alice", "--allow", "ToolInvoke(add)", "--per-minute", "5")
    assert code == 0 and "not shown again" in err
    token = out.strip()
    holder = asyncio.run(ApiKeys("keys.json").verify(token))
    assert isinstance(holder, ApiKeyPrincipal) and (holder.id, holder.per_minute) == ("alice", 5)
    assert token.partition(".")[2] not in defserve("keys", "list").out + defserve("keys", "list", "--json").out


def test_a_key_that_may_nothing_is_only_made_on_purpose(defserve: Run, folder: Path):
    code, out, err = defserve("keys", "create", "alice", "--out", "alice.key")
    assert (code, out) == (1, "") and "couldn't call any tool" in err and "--allow 'ToolInvoke(*)'" in err
    assert not (folder / "alice.key").exists() and defserve("keys", "list").out == "There are no keys.\n"
    assert defserve("keys", "create", "alice", "--no-tools", "--out", "alice.key").code == 0


def test_a_list_shows_what_each_key_may(defserve: Run):
    assert defserve("keys", "list").out == "There are no keys.\n"
    made = json.loads(
        defserve(
            "keys", "create", "ci", "--allow", "ToolsListAll", "--scope", "x", "--expires", "30d", "--per-hour", "9",
            "--json",
        ).out
    )  # fmt: skip
    (row,) = defserve("keys", "list").out.splitlines()[1:]
    assert row.split()[:2] == [made["id"], "ci"]
    assert "ToolsListAll x" in row and "9/h" in row and "never" in row
    (listed,) = json.loads(defserve("keys", "list", "--json").out)
    assert listed == {name: value for name, value in made.items() if name != "key"}
    assert "hash" not in listed and listed["expires_at"] > listed["created_at"]


def test_a_key_is_revoked_by_its_id_or_by_the_whole_of_it(defserve: Run):
    one, other = (defserve("keys", "create", name, "--no-tools").out.strip() for name in ("a", "b"))
    assert defserve("keys", "revoke", one.partition(".")[0]).out == f"{one.partition('.')[0]} is revoked\n"
    assert other.partition(".")[2] not in defserve("keys", "revoke", other).out
    assert defserve("keys", "list").out == "There are no keys.\n"
    code, _, err = defserve("keys", "revoke", one)
    assert code == 1 and "there is no key" in err and one.partition(".")[2] not in err


def test_keys_may_be_in_a_store(defserve: Run, folder: Path):
    store = f"sqlite:///{folder / 'keys.db'}"
    refused = defserve("keys", "create", "alice", "--no-tools", "--store", store)
    assert refused.code != 0 and "name it: --server NAME" in refused.err
    assert defserve("keys", "list", "--store", store).out == "There are no keys.\n"
    assert defserve("keys", "create", "alice", "--no-tools", "--store", store, "--server", "notes").code == 0
    assert "alice" in defserve("keys", "list", "--store", store).out
    assert defserve("keys", "list", "--store", store, "--server", "payroll").out == "There are no keys.\n"
    assert defserve("keys", "create", "bob", "--no-tools", "--store", store, "--server", "payroll").code == 0
    assert "values of 2 servers: name=notes, name=payroll" in defserve("keys", "list", "--store", store).err
    assert not Path("keys.json").exists()


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "needs ACTION"),
        (["make"], "defserve keys has no action 'make'"),
        (["create"], "needs PRINCIPAL"),
        (["create", "local", "--no-tools"], "cannot be called 'local'"),
        (["create", "a", "--allow", "Everything"], "'Everything' is not a permission"),
        (["create", "a", "--expires", "soon"], "'soon' is not a duration"),
        (["create", "a", "--per-hour", "0"], "not a number above 0"),
        (["list", "--store", "sqlite:x"], "not the address of a store"),
    ],
)
def test_wrong_usage_is_explained(defserve: Run, argv: list[str], complaint: str):
    code, out, err = defserve("keys", *argv)
    assert (code, out) == (1, "")
    assert complaint in err and "fix: " in err


def test_a_key_can_be_put_into_a_file_that_only_its_owner_reads(defserve: Run, folder: Path):
    old = os.umask(0)
    try:
        code, out, err = defserve("keys", "create", "alice", "--allow", "ToolInvoke(add)", "--out", "alice.key")
    finally:
        os.umask(old)
    assert (code, out) == (0, "") and "The key of alice is in alice.key" in err
    assert stat.S_IMODE((folder / "alice.key").stat().st_mode) == 0o600
    holder = asyncio.run(ApiKeys("keys.json").verify((folder / "alice.key").read_text().strip()))
    assert isinstance(holder, ApiKeyPrincipal) and holder.id == "alice"


def test_a_file_that_is_there_is_no_place_for_a_key(defserve: Run, folder: Path):
    (folder / "alice.key").write_text("mine")
    code, _, err = defserve("keys", "create", "alice", "--no-tools", "--out", "alice.key")
    assert (code, "cannot create alice.key: File exists" in err) == (1, True)
    assert (folder / "alice.key").read_text() == "mine"
    assert defserve("keys", "list").out == "There are no keys.\n"


def test_where_no_key_is_made_no_file_stays(defserve: Run, folder: Path):
    assert defserve("keys", "create", "alice", "--allow", "Everything", "--out", "alice.key").code == 1
    assert not (folder / "alice.key").exists()


def test_a_scope_given_as_a_permission_is_told_its_option(defserve: Run, folder: Path):
    code, _, err = defserve("keys", "create", "alice", "--allow", "notes:read")
    assert (code, "fix: a scope is given with --scope notes:read" in err) == (1, True), err


@pytest.mark.parametrize(
    ("options", "is_noted"),
    [
        (["--scope", "notes:read"], True),
        (["--scope", "tool:invoke:add"], False),
        (["--scope", "notes:read", "--allow", "MetricsRead"], False),
        (["--scope", "notes:read", "--no-tools"], False),
    ],
)
def test_a_key_of_scopes_alone_is_noted_because_it_calls_no_tool(
    defserve: Run, folder: Path, options: list[str], is_noted: bool
):
    code, out, err = defserve("keys", "create", "alice", *options)
    assert (code, out.count("\n"), "note: scopes alone" in err) == (0, 1, is_noted)
