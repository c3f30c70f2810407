"""Methods that a server does not have, though it offers what they belong to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from defserve.client.replies import is_method_missing, list_if_supported
from defserve.errors import PeerError, PeerGone, PeerTimeout
from defserve.serve.address import CredentialsRequired, HttpRefusal
from tests.rows import for_each_row

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("forked")]

SERVER = Path(__file__).parents[1] / "plain_server.py"
LISTS = ("tools/list", "resources/list", "resources/templates/list", "prompts/list")


@for_each_row(
    "error, is_lacking",
    [
        (PeerError("Method not found", code=-32601), True),
        (PeerError("whatever", code=-32601), True),
        (PeerError("Invalid Request", code=-32600), True),
        (PeerError("Invalid request parameters", code=-32602), True),
        (PeerError("Unknown method: resources/templates/list", code=-32603), True),
        (PeerError("Method resources/templates/list is not implemented", code=-32000), True),
        (PeerError("NotImplementedError: not implemented", code=-32603), True),
        (PeerError("unsupported request", code=0), True),
        (PeerError("the database is gone", code=-32603), False),
        (PeerError("internal error (id 1)", code=-32603), False),
        (PeerError("Unauthorized", code=-32001), False),
        (HttpRefusal("HTTP 404", data={"status": 404}), True),
        (HttpRefusal("HTTP 405", data={"status": 405}), True),
        (HttpRefusal("HTTP 500", data={"status": 500}), False),
        (HttpRefusal("HTTP 429", data={"status": 429}), False),
        (PeerGone("method not found"), False),
        (PeerTimeout("method not found"), False),
        (CredentialsRequired("http://x", 401, "Bearer"), False),
    ],
    ids=range(18),
)
async def test_what_means_that_a_server_lacks_a_method(error: PeerError, is_lacking: bool) -> None:
    assert is_method_missing(error) is is_lacking

    async def listing() -> list[Any]:
        raise error

    if is_lacking:
        items, note = await list_if_supported("prompts/list", listing())
        assert items == [] and "prompts/list" in note
    else:
        with pytest.raises(PeerError):
            await list_if_supported("prompts/list", listing())


def words(folder: Path, *changes: str) -> list[str]:
    return ["--", sys.executable, str(SERVER), str(folder / "count"), "answers", *changes]


@pytest.mark.parametrize("code", ["-32601", "-32600:Invalid Request", "-32602", "-32603:Unknown method"])
@pytest.mark.parametrize("command", ["list", "inspect"])
def test_commands_show_what_there_is_and_note_what_a_server_lacks(
    command: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from defserve.cli import main

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lacking = ("resources/templates/list", "prompts/list")
    assert main([command, *words(tmp_path, *(f"{method}={code}" for method in lacking))]) == 0
    out, err = capsys.readouterr()
    assert "add" in out and all(f"note: the server does not know {method}" in err for method in lacking)


@pytest.mark.slow
@pytest.mark.parametrize("method", LISTS)
@pytest.mark.parametrize("command", ["list", "inspect"])
def test_any_of_the_lists_may_be_lacking(
    command: str, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from defserve.cli import main

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main([command, *words(tmp_path, f"{method}=-32601")]) == 0
    assert f"does not know {method}" in capsys.readouterr().err


def test_another_error_is_still_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from defserve.cli import main

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["list", *words(tmp_path, "prompts/list=-32603:the database is gone")]) != 0
    assert "the database is gone" in capsys.readouterr().err


def test_who_misspells_a_resource_is_told_what_there_is_without_templates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from defserve.cli import main

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    changes = ("resources/templates/list=-32601", "resources/read=-32002:Resource not found")
    program, *rest = words(tmp_path, *changes)[1:]
    assert main(["read", "note://onee", "--", program, *rest]) == 1
    assert "did you mean 'note://one'" in capsys.readouterr().err
