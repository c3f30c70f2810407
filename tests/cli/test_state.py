from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from defserve.cli.commands.state import drawing
from defserve.protocols.mcp.asking.server_secret import SECRET_VARIABLE
from defserve.stores.checkpoints.checkpoint_store import OPAQUE, CheckpointStore, load_checkpoint_secret
from defserve.stores.checkpoints.checkpoint_tree import Checkpoint, TreeKey
from defserve.stores.identity import ServerIdentity, make_server_store
from tests.cli.running import Outcome, Run

ALICE, BOB = TreeKey("notes.edit", "alice"), TreeKey("notes.edit", "bob")
GIT = TreeKey("git.commit", "alice")


class Kept:
    """Trees in a file: alice's notes a ─ b ─ c with a branch d off a, which is the head; bob's; one opaque."""

    def __init__(self, path: Path, server_secret: bytes | None = None) -> None:
        self.address = f"sqlite:///{path}"
        self.ids: dict[str, str] = {}
        asyncio.run(self._fill(server_secret))

    async def _fill(self, server_secret: bytes | None) -> None:
        identity = ServerIdentity("name", "notes")
        store = make_server_store(self.address, identity)
        secret = await load_checkpoint_secret(store, server_secret, identity)
        long_ago = CheckpointStore(store, secret=secret, clock=lambda: time.time() - 1_000_000)
        trees = CheckpointStore(store, secret=secret)
        for text in "abc":
            await self._add(trees, ALICE, text)
        await trees.rollback(ALICE, self.ids["a"])
        await self._add(trees, ALICE, "d")
        await self._add(long_ago, BOB, "old")
        self.ids["opaque"] = (await trees.commit(await trees.load_checkpoint(GIT), OPAQUE)).checkpoint.id
        await store.close()

    async def _add(self, trees: CheckpointStore, key: TreeKey, text: str) -> None:
        held = await trees.load_checkpoint(key)
        content = held.content() or {"pad": "x" * 100, "notes": []}
        content["notes"].append(text)
        self.ids[text] = (await trees.commit(held, content)).checkpoint.id


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    return Kept(tmp_path / "notes.db")


def shown(outcome: Outcome) -> Any:
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_trees_are_listed(defserve: Run, kept: Kept):
    code, out, err = defserve("state", "list", kept.address)
    assert (code, err) == (0, "")
    head, *rows = [re.split(r" {2,}", line) for line in out.splitlines()]
    assert head == ["feature set", "owner", "kept", "made", "last", "head"]
    assert [row[:4] for row in rows] == [
        ["git.commit", "alice", "1", "1"],
        ["notes.edit", "alice", "4", "4"],
        ["notes.edit", "bob", "1", "1"],
    ]
    assert rows[1][5] == kept.ids["d"]
    (bob,) = shown(defserve("state", "list", kept.address, "--owner", "bob", "--json"))
    assert bob["head"] == kept.ids["old"] and bob["time"] < time.time() - 999_999


def test_a_tree_is_drawn(defserve: Run, kept: Kept):
    code, out, _ = defserve("state", "show", kept.address, "--set", "notes.edit", "--owner", "alice")
    lines = [re.sub(r"  \d{4}-.*:\d\d", "", line) for line in out.splitlines()]
    for name, id in kept.ids.items():
        lines = [line.replace(id, name) for line in lines]
    assert code == 0
    assert lines == [
        "feature set  owner",
        "notes.edit   alice",
        "a  #1",
        "├── b  #2",
        "│   c  #3",
        "└── d  #4  <- head",
        "",
    ]


def test_a_long_way_is_drawn_straight_down():
    way = [Checkpoint(f"c{n}", f"c{n - 1}" if n else None, n, n, 0.0) for n in range(5_000)]
    lines = list(drawing(way, None))
    assert len(lines) == 5_000
    assert all(line.startswith("c") for line in lines)


def test_a_tree_is_shown_as_json(defserve: Run, kept: Kept):
    trees = shown(defserve("state", "show", kept.address, "--json"))
    notes = trees[1]
    assert (notes["featureSet"], notes["owner"], notes["head"]) == ("notes.edit", "alice", kept.ids["d"])
    assert [at["id"] for at in notes["checkpoints"]] == [kept.ids[name] for name in "abcd"]


def test_a_checkpoint_is_shown_with_its_content(defserve: Run, kept: Kept):
    code, out, _ = defserve("state", "show", kept.address, kept.ids["c"])
    assert code == 0
    assert json.loads(out.partition("{")[1] + out.partition("{")[2])["notes"] == ["a", "b", "c"]
    assert kept.ids["b"] in out
    one = shown(defserve("state", "show", kept.address, kept.ids["d"], "--json"))
    assert (one["parent"], one["content"]["notes"], one["owner"]) == (kept.ids["a"], ["a", "d"], "alice")
    assert "no content" in defserve("state", "show", kept.address, kept.ids["opaque"]).out


def test_two_checkpoints_are_compared(defserve: Run, kept: Kept):
    between = (kept.ids["c"], kept.ids["d"])
    ops = shown(defserve("state", "diff", kept.address, *between, "--json"))
    assert ops == [
        {"op": "replace", "path": "/notes/1", "value": "d"},
        {"op": "remove", "path": "/notes/2"},
    ]
    assert defserve("state", "diff", kept.address, *between).out == 'replace  /notes/1  "d"\nremove   /notes/2\n'


def test_everything_is_exported_a_line_each(defserve: Run, kept: Kept):
    code, out, _ = defserve("state", "export", kept.address)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(lines) == 6
    mine = [line for line in lines if (line["featureSet"], line["owner"]) == ALICE]
    assert [line["content"]["notes"] for line in mine] == [["a"], ["a", "b"], ["a", "b", "c"], ["a", "d"]]
    assert [line["head"] for line in mine] == [False, False, False, True]


def test_old_checkpoints_are_let_go_and_heads_stay(defserve: Run, kept: Kept):
    rows = shown(defserve("state", "prune", kept.address, "--keep", "2", "--json"))
    assert [(row["owner"], row["dropped"], row["kept"]) for row in rows] == [
        ("alice", 0, 1),
        ("alice", 2, 2),
        ("bob", 0, 1),
    ]
    assert shown(defserve("state", "show", kept.address, kept.ids["d"], "--json"))["content"]["notes"] == ["a", "d"]
    assert defserve("state", "verify", kept.address).code == 0


def test_trees_that_nobody_used_for_long_are_let_go(defserve: Run, kept: Kept):
    assert shown(defserve("state", "prune", kept.address, "--idle", "30d", "--json"))[2]["kept"] == 1
    code, out, _ = defserve("state", "prune", kept.address, "--idle", "1d")
    assert code == 0 and re.search(r"notes.edit +bob +1 +0", out)
    assert [tree["owner"] for tree in shown(defserve("state", "list", kept.address, "--json"))] == ["alice", "alice"]


def test_an_intact_store_is_reported_as_intact(defserve: Run, kept: Kept):
    assert defserve("state", "verify", kept.address) == Outcome(0, "intact: 3 trees, 6 checkpoints\n", "")
    assert shown(defserve("state", "verify", kept.address, "--json"))["checkpoints"] == 6
    assert defserve("state", "verify", kept.address, "--owner", "bob").out == "intact: 1 tree, 1 checkpoint\n"


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ("DELETE FROM entries WHERE name = :a", "checkpoints, but"),
        ("DELETE FROM entries WHERE name = :d", "the head"),
        ("UPDATE entries SET value = CAST('x' AS BLOB) WHERE name = :b", "cannot be read"),
        (
            """UPDATE entries SET value = CAST(replace(value, '"old"', '"new"') AS BLOB) WHERE name = :old""",
            "not made with this secret",
        ),
    ],
)
def test_damage_is_found(defserve: Run, kept: Kept, damage: str, complaint: str):
    path = kept.address.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        connection.execute(damage, kept.ids)
    connection.close()
    code, out, _ = defserve("state", "verify", kept.address)
    assert code == 1
    assert complaint in out
    assert shown(Outcome(0, defserve("state", "verify", kept.address, "--json").out, ""))["ok"] is False


def test_a_servers_own_secret_comes_from_the_environment(
    defserve: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    kept = Kept(tmp_path / "secret.db", b"s" * 32)
    code, out, _ = defserve("state", "verify", kept.address)
    assert code == 1 and SECRET_VARIABLE in out
    monkeypatch.setenv(SECRET_VARIABLE, "s" * 32)
    assert defserve("state", "verify", kept.address).code == 0


def test_owners_cannot_write_on_the_terminal(defserve: Run, tmp_path: Path):
    address = f"sqlite:///{tmp_path / 's.db'}"

    async def fill() -> None:
        store = make_server_store(address, ServerIdentity("name", "notes"))
        trees = CheckpointStore(store, secret=b"s" * 32)
        await trees.commit(await trees.load_checkpoint(TreeKey("a", "x\x1b[2J\n")), {"a": 1})
        await store.close()

    asyncio.run(fill())
    for action in ("list", "show"):
        assert "\x1b" not in defserve("state", action, address).out


@pytest.mark.parametrize(
    ("argv", "code", "complaint"),
    [
        ([], 1, "needs ACTION"),
        (["dump", "x"], 1, "defserve state has no action 'dump'"),
        (["list"], 1, "needs STORE"),
        (["list", "memory:"], 1, "can only be read by its own process"),
        (["list", "sqlite:///none.db"], 1, "none.db does not exist\n  fix: name a file that is there: sqlite:///"),
        (["list", "notes.db"], 1, "fix: write 'sqlite:///notes.db'"),
        (["list", "/srv/notes.db"], 1, "fix: write 'sqlite:////srv/notes.db'"),
        (["list", "mysql://x"], 1, "is not the address of a store"),
        (["verify", "sqlite:///none.db"], 2, "none.db does not exist"),
        (["prune", "sqlite:///none.db", "--ttl", "soon"], 1, "'soon' is not a duration"),
        (["prune", "sqlite:///none.db", "--keep", "0"], 1, "'0' is not a number above 0"),
    ],
)
def test_wrong_usage_is_explained(defserve: Run, folder: Path, argv: list[str], code: int, complaint: str):
    outcome = defserve("state", *argv)
    assert outcome.code == code
    assert complaint in outcome.err
    assert list(folder.iterdir()) == []


def test_what_is_not_there_is_told(defserve: Run, kept: Kept):
    assert "has nothing of feature set 'none'\n" in defserve("state", "list", kept.address, "--set", "none").err
    whose = defserve("state", "list", kept.address, "--set", "none", "--owner", "nobody").err
    assert "has nothing of feature set 'none' and owner 'nobody'\n" in whose
    assert "no checkpoint 'chk_none'" in defserve("state", "show", kept.address, "chk_none").err
    assert "is not in the tree of" in defserve("state", "diff", kept.address, kept.ids["a"], kept.ids["old"]).err
    assert "say what to delete" in defserve("state", "prune", kept.address).err


def test_a_checkpoint_is_named_by_its_begin(defserve: Run, kept: Kept):
    short = kept.ids["c"][:14]
    assert shown(defserve("state", "show", kept.address, short, "--json"))["id"] == kept.ids["c"]
    # An id may begin with a dash.
    assert shown(defserve("state", "show", "--json", "--", kept.address, short[4:]))["id"] == kept.ids["c"]
    assert "no checkpoint 'chk_'" in defserve("state", "show", kept.address, "chk_").err


def test_several_that_begin_alike_are_named(defserve: Run, kept: Kept, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("defserve.cli.commands.state.MIN_ID_LENGTH", 0)
    code, _, err = defserve("state", "show", kept.address, "chk_")
    assert code == 1 and "6 checkpoints begin with 'chk_'" in err and kept.ids["a"][:12] in err


def test_ids_are_as_short_as_they_can_be():
    from defserve.cli.commands.state import short_ids

    ids = ["chk_12345678aaaa", "chk_12345678aabb", "chk_99999999aaaa"]
    assert short_ids(ids) == {ids[0]: "chk_12345678aaaa", ids[1]: "chk_12345678aabb", ids[2]: "chk_99999999aaaa"}
    assert short_ids(ids[:1]) == {ids[0]: "chk_12345678"}
    assert short_ids([]) == {}


def test_a_terminal_shows_short_ids_unless_all_of_them_are_wanted(
    defserve: Run, kept: Kept, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("defserve.cli.commands.state.can_draw", lambda stream: True)  # type: ignore[misc]
    out = defserve("state", "show", kept.address).out
    assert kept.ids["a"][:12] in out and kept.ids["a"] not in out
    assert kept.ids["a"] in defserve("state", "show", kept.address, "--long").out


def test_a_head_is_rolled_back_and_nothing_is_lost(defserve: Run, kept: Kept):
    code, out, err = defserve("state", "rollback", kept.address, kept.ids["b"][:16])
    assert (code, err) == (0, "")
    assert out == (f"{kept.ids['b']} is the head again (notes.edit of alice)\n  the head before it: {kept.ids['d']}\n")
    tree = shown(defserve("state", "show", kept.address, "--set", "notes.edit", "--owner", "alice", "--json"))[0]
    assert tree["head"] == kept.ids["b"] and len(tree["checkpoints"]) == 4
    said = shown(defserve("state", "rollback", kept.address, kept.ids["d"], "--json"))
    assert (said["head"], said["before"]) == (kept.ids["d"], kept.ids["b"])
    assert "is the head already" in defserve("state", "rollback", kept.address, kept.ids["d"]).out


def test_a_branch_begins_with_the_same_content_or_another(defserve: Run, kept: Kept, tmp_path: Path):
    made = shown(defserve("state", "branch", kept.address, kept.ids["b"], "--json"))
    one = shown(defserve("state", "show", kept.address, made["head"], "--json"))
    assert (one["parent"], one["content"]["notes"]) == (kept.ids["b"], ["a", "b"])
    (tmp_path / "new.json").write_text('{"notes": ["z"]}')
    made = shown(
        defserve("state", "branch", kept.address, kept.ids["a"], "--content", f"{tmp_path}/new.json", "--json")
    )
    one = shown(defserve("state", "show", kept.address, made["head"], "--json"))
    assert (one["parent"], one["content"]) == (kept.ids["a"], {"notes": ["z"]})
    assert defserve("state", "verify", kept.address).code == 0


@pytest.mark.parametrize("action", ["rollback", "branch"])
def test_a_state_that_its_server_keeps_is_left_alone(defserve: Run, kept: Kept, action: str):
    code, out, err = defserve("state", action, kept.address, kept.ids["opaque"])
    assert (code, out) == (1, "") and "keeps this state itself" in err


def test_a_branch_needs_the_servers_secret(defserve: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    kept = Kept(tmp_path / "secret.db", b"s" * 32)
    code, _, err = defserve("state", "branch", kept.address, kept.ids["a"])
    assert code == 1 and f"fix: set {SECRET_VARIABLE}" in err
    monkeypatch.setenv(SECRET_VARIABLE, "s" * 32)
    assert defserve("state", "branch", kept.address, kept.ids["a"]).code == 0


@pytest.mark.parametrize(("text", "said"), [(None, "cannot read"), ("{", "is not JSON")])
def test_a_content_that_cannot_be_read_changes_nothing(
    defserve: Run, kept: Kept, tmp_path: Path, text: str | None, said: str
):
    if text is not None:
        (tmp_path / "new.json").write_text(text)
    code, _, err = defserve("state", "branch", kept.address, kept.ids["a"], "--content", f"{tmp_path}/new.json")
    assert code == 1 and said in err
    assert shown(defserve("state", "list", kept.address, "--json"))[1]["head"] == kept.ids["d"]


def test_a_tree_that_is_not_there_is_met_with_the_nearest(defserve: Run, kept: Kept):
    assert "did you mean 'notes.edit'?" in defserve("state", "show", kept.address, "--set", "note.edit").err
    assert "did you mean 'alice'?" in defserve("state", "show", kept.address, "--owner", "alcie").err


# -- whether it is proved --------------------------------------------------------------------------------


def heads(defserve: Run, kept: Kept) -> dict[str, Any]:
    """What `show` says of each tree's head."""
    trees = shown(defserve("state", "show", kept.address, "--json"))
    return {
        tree["featureSet"] + " " + tree["owner"]: next(at for at in tree["checkpoints"] if at["id"] == tree["head"])
        for tree in trees
    }


def test_a_branch_inherits_its_proof_and_a_file_has_none(defserve: Run, kept: Kept, tmp_path: Path):
    (file := tmp_path / "content.json").write_text('{"notes": ["mended"]}')
    assert defserve("state", "branch", kept.address, kept.ids["a"]).code == 0
    assert heads(defserve, kept)["notes.edit alice"]["proved"] is True
    outcome = defserve("state", "branch", kept.address, kept.ids["a"], "--content", str(file))
    assert outcome.code == 0 and "defserve state trust" in outcome.out + outcome.err
    unproved = heads(defserve, kept)["notes.edit alice"]
    assert unproved["proved"] is False
    assert defserve("state", "branch", kept.address, unproved["id"]).code == 0
    assert heads(defserve, kept)["notes.edit alice"]["proved"] is False
    exported = [json.loads(line) for line in defserve("state", "export", kept.address).out.splitlines()]
    assert {line["id"]: line["proved"] for line in exported}[unproved["id"]] is False


def test_only_the_operator_can_say_that_a_state_is_good(defserve: Run, kept: Kept, tmp_path: Path):
    (file := tmp_path / "content.json").write_text('{"notes": ["mended"]}')
    defserve("state", "branch", kept.address, kept.ids["a"], "--content", str(file))
    before = heads(defserve, kept)["notes.edit alice"]
    (row,) = shown(defserve("state", "trust", kept.address, "--json"))
    assert row["before"] == before["id"]
    after = heads(defserve, kept)["notes.edit alice"]
    assert (after["proved"], after["parent"], after["id"]) == (True, before["id"], row["head"])
    assert shown(defserve("state", "show", kept.address, after["id"], "--json"))["content"] == {"notes": ["mended"]}
    assert "nothing to do" in defserve("state", "trust", kept.address).out
    assert defserve("state", "verify", kept.address).code == 0
    assert "is trusted" in defserve("state", "trust", kept.address, before["id"]).out


def test_trust_needs_the_secret_of_the_server(
    defserve: Run, kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (file := tmp_path / "content.json").write_text("{}")
    defserve("state", "branch", kept.address, kept.ids["a"], "--content", str(file))
    monkeypatch.setenv(SECRET_VARIABLE, "another secret, of another server")
    code, _, err = defserve("state", "trust", kept.address)
    assert code == 1 and "secret" in err and SECRET_VARIABLE in err


def test_what_0_1_0_kept_is_trusted_when_an_operator_says_so(
    defserve: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    old = Path(__file__).parents[1] / "stores" / "formats" / "0.1.0" / "store.db"
    (path := tmp_path / "store.db").write_bytes(old.read_bytes())
    path.chmod(0o600)
    assert defserve("state", "adopt", f"sqlite:///{path}", "--server", "notes").code == 0
    (row,) = shown(defserve("state", "trust", f"sqlite:///{path}", "--set", "notes.draw", "--json"))
    trees = shown(defserve("state", "show", f"sqlite:///{path}", "--set", "notes.draw", "--json"))
    assert [at["id"] for at in trees[0]["checkpoints"] if at["proved"]] == [row["head"]]


# -- what names no server --------------------------------------------------------------------------------


def test_what_0_1_0_kept_is_given_to_a_server(defserve: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    path = tmp_path / "store.db"
    path.write_bytes((Path(__file__).parents[1] / "stores" / "formats" / "0.1.0" / "store.db").read_bytes())
    path.chmod(0o600)
    refused = defserve("state", "list", f"sqlite:///{path}")
    assert refused.code != 0 and "defserve state adopt STORE --server NAME" in refused.err
    assert "needs --server" in defserve("state", "adopt", f"sqlite:///{path}").err
    given = shown(defserve("state", "adopt", f"sqlite:///{path}", "--server", "namespace=staging", "--json"))
    assert given["server"] == "namespace=staging" and given["spaces"] > 2
    assert "intact:" in defserve("state", "verify", f"sqlite:///{path}").out
    again = defserve("state", "adopt", f"sqlite:///{path}", "--server", "notes")
    assert again.code != 0 and "has nothing of defserve 0.1.0" in again.err


def test_the_state_of_several_servers_is_looked_at_one_by_one(defserve: Run, kept: Kept):
    async def fill() -> None:
        store = make_server_store(kept.address, ServerIdentity("name", "payroll"))
        trees = CheckpointStore(store, secret=b"s" * 32)
        await trees.commit(await trees.load_checkpoint(TreeKey("salaries", "eve")), {"a": 1})
        await store.close()

    asyncio.run(fill())
    refused = defserve("state", "list", kept.address)
    assert refused.code != 0 and "values of 2 servers: name=notes, name=payroll" in refused.err
    (row,) = shown(defserve("state", "list", kept.address, "--server", "payroll", "--json"))
    assert row["featureSet"] == "salaries"
    assert len(shown(defserve("state", "list", kept.address, "--server", "notes", "--json"))) == 3
