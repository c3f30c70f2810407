"""One list says what is never shipped; the ignore files of a new project say the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from defserve.auth.api_keys import ApiKeys
from defserve.stores.audit.log_file import AuditLog
from defserve.stores.sqlite import SqliteStore
from defserve.stores.store import API_KEYS_SPACE, StoreChange
from defserve.tooling.packaging.privacy import NEVER_SHIPPED, classify_private_path
from tests.rows import for_each_row

PRIVATE = [
    *(".env", ".env.local", "prod.env", ".envrc", "secrets.toml", ".vault-token", ".vault_pass"),
    *("id_rsa", "id_rsa.bak", "id_ed25519", "id_work", "tls.pem", "tls.key", "a.p12", "a.pfx", "a.jks", "a.kdbx"),
    *(".aws/credentials", ".aws/config", ".azure/x", ".gcloud/x", ".config/gcloud/x", ".kube/config", "credentials"),
    *("credentials.json", "my-credentials.json", "service-account-1.json", ".docker/config.json", ".netrc", ".pypirc"),
    *(".git-credentials", ".htpasswd", ".pgpass", ".ssh/config", ".gnupg/pubring.kbx", "a.tfstate", "a.tfstate.backup"),
    *("keys.json", "keys.json.lock", "audit.jsonl", "audit.jsonl.head", "audit.log", "audit.log.head", "keys.pepper"),
    *("state.db", "state.db-wal", "state.db-shm", "a.sqlite", "a.sqlite3", "a.sqlite3-wal"),
    *(".bash_history", ".zsh_history", ".python_history", ".psql_history"),
    *(".git/config", ".hg/hgrc", ".svn/entries", ".idea/workspace.xml", ".vscode/mcp.json"),
    *("__pycache__/a.pyc", ".venv/lib/a.py", "node_modules/a.js", ".pytest_cache/v", ".coverage", "a.py~", "a.swp"),
]
SHIPPED = [
    *("src/weather/__init__.py", "src/weather/credentials.py", "src/credentials/__init__.py", "id_map.json"),
    *(".env.example", "docs/credentials.md", "environment.py", "tests/test_audit.py", "audit.py", "keys.py", "LICENSE"),
    *(
        ".mcp.json",
        ".github/workflows/ci.yml",
        "data/keys.csv",
        "src/weather/secrets.py",
        "id_rsa.pub",
        "id_tools/a.py",
    ),
]


@for_each_row("path", PRIVATE)
def test_a_private_file_is_known_in_any_folder_and_any_case(path: str):
    for written in (path, f"src/weather/{path}", path.upper(), path.replace("/", "\\")):
        assert classify_private_path(written) is not None, written


@for_each_row("path", SHIPPED)
def test_what_looks_alike_is_shipped(path: str):
    assert classify_private_path(path) is None


def test_the_folder_that_makes_a_file_private_is_named():
    assert classify_private_path("src/.aws/sso/cache/1.json") == ("credentials", "src/.aws/")
    assert classify_private_path("src/.ENV") == ("settings with secrets", "src/.ENV")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that `defserve new` made, in a repository of its own."""
    folder = tmp_path_factory.mktemp("new")
    subprocess.run([sys.executable, "-m", "defserve", "new", "fresh", "--yes"], cwd=folder, check=True)
    return folder / "fresh"


def test_the_ignore_files_of_a_new_project_have_the_whole_list(fresh: Path):
    patterns = [pattern for patterns in NEVER_SHIPPED.values() for pattern in patterns]
    lines = [f"**/{pattern}" if "/" in pattern[:-1] else pattern for pattern in patterns]
    assert (fresh / ".gitignore").read_text().splitlines()[-len(lines) :] == lines
    in_docker = [line.removeprefix("!src/").strip("*/") for line in (fresh / ".dockerignore").read_text().splitlines()]
    assert in_docker[-len(lines) :] == [line.removeprefix("!").strip("*/") for line in lines]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_ignores_in_a_new_project_what_is_never_shipped_and_nothing_else(fresh: Path):
    subprocess.run(["git", "init", "-q"], cwd=fresh, check=True)
    # Git never has files of its own folder, wherever that is.
    paths = [path for path in PRIVATE if not path.startswith(".git/")] + SHIPPED
    found = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin"],
        cwd=fresh,
        input="\n".join(paths),
        capture_output=True,
        text=True,
    )
    assert sorted(found.stdout.splitlines()) == sorted(path for path in paths if classify_private_path(path))


@pytest.mark.anyio
async def test_every_file_that_our_stores_write_under_its_usual_name_is_private(tmp_path: Path):
    keys = ApiKeys(tmp_path / "keys.json", pepper="a pepper of sixteen bytes")
    store = SqliteStore(tmp_path / "state.db")
    await keys.create("ann")
    await store.change(StoreChange(API_KEYS_SPACE, put={"a": b"1"}))
    log = AuditLog(tmp_path / "audit.jsonl", key="an audit key of sixteen bytes")
    log.append({"event_type": "A"}, durable=True)
    log.close()
    written = os.listdir(tmp_path)
    await store.close()
    assert {"keys.json", "state.db", "audit.jsonl", "audit.jsonl.head"} <= {*written}
    assert [name for name in written if classify_private_path(name) is None] == []
