from __future__ import annotations

from pathlib import Path

import pytest

from defserve import ToolError
from defserve.errors import PeerError
from defserve.testing import SyncClient

LINES = ["email,name,age", "ada@example.com,Ada,36", "no address,Bob,40", "eve@example.com,Eve,two", "x@y.z,Zoe,8"]


def test_an_import_tells_how_far_it_is_and_what_it_could_not_read(client: SyncClient, folder: Path):
    (folder / "people.csv").write_text("\n".join(LINES))
    report = client.call("import_people", file="people.csv")
    assert report["imported"] == 2
    assert [problem.split(": ")[:2] for problem in report["problems"]] == [["line 3", "email"], ["line 4", "age"]]
    assert [(done, total) for done, total, _ in client.progress] == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_it_runs_as_a_task_too(client: SyncClient, folder: Path):
    (folder / "people.csv").write_text("\n".join(LINES))
    assert client.start("import_people", file="people.csv").result()["imported"] == 2


def test_only_files_of_the_folder_are_read(client: SyncClient):
    with pytest.raises(ToolError, match="There is no file people.csv"):
        client.call("import_people", file="people.csv")
    with pytest.raises((ToolError, PeerError), match="refused|rejected|Blocked"):
        client.call("import_people", file="../people.csv")
