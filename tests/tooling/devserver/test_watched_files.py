from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from defserve.tooling.devserver.reload_supervisor import WatchedFiles


@pytest.fixture(params=["watchfiles", "polling"])
def eyes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "polling":
        monkeypatch.setitem(sys.modules, "watchfiles", None)
    else:
        pytest.importorskip("watchfiles")


def seen(files: WatchedFiles, change: object) -> list[str]:
    """What is found to have changed by `change()`, which happens while somebody waits."""

    async def main() -> list[str]:
        before = files.snapshot()
        waiting = asyncio.create_task(files.wait_for_change(before))
        await asyncio.sleep(0)
        assert callable(change)
        change()
        async with asyncio.timeout(10):
            return await waiting

    return [Path(path).name for path in asyncio.run(main())]


@pytest.mark.usefixtures("eyes")
def test_a_file_and_the_modules_and_pages_beside_it_are_watched(tmp_path: Path):
    server, neighbour = tmp_path / "server.py", tmp_path / "neighbour.py"
    server.write_text("1")
    files = WatchedFiles([str(server)])
    assert seen(files, lambda: server.write_text("22")) == ["server.py"]
    assert seen(files, lambda: neighbour.write_text("1")) == ["neighbour.py"]
    assert seen(files, neighbour.unlink) == ["neighbour.py"]
    assert seen(files, lambda: (tmp_path / "view.html").write_text("1")) == ["view.html"]


@pytest.mark.usefixtures("eyes")
def test_several_writes_at_once_are_one_change(tmp_path: Path):
    files = WatchedFiles([str(tmp_path / "a.py")])

    def write() -> None:
        (tmp_path / "a.py").write_text("1")
        (tmp_path / "b.py").write_text("1")

    assert seen(files, write) == ["a.py", "b.py"]


def test_what_is_no_module_is_watched_only_if_it_is_named(tmp_path: Path):
    files = WatchedFiles([str(tmp_path / "a.py")])
    before = files.snapshot()
    (tmp_path / "data.json").write_text("1")
    assert files.snapshot() == before
    files.add([str(tmp_path / "data.json")])
    assert [Path(path).name for path in files.snapshot()] == ["data.json"]


def test_a_folder_stands_for_all_modules_below_it(tmp_path: Path):
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / ".venv").mkdir()
    for place in ("deep/deeper/a.py", "deep/b.py", ".venv/c.py"):
        (tmp_path / place).write_text("1")
    assert sorted(Path(path).name for path in WatchedFiles([str(tmp_path)]).snapshot()) == ["a.py", "b.py"]


@pytest.mark.usefixtures("eyes")
def test_of_a_tree_every_file_is_watched(tmp_path: Path):
    folder = tmp_path / "skills"
    (folder / "one").mkdir(parents=True)
    files = WatchedFiles([])
    files.add_trees([str(folder)])
    assert seen(files, lambda: (folder / "one" / "SKILL.md").write_text("1")) == ["SKILL.md"]

    def make() -> None:
        (folder / "two").mkdir()
        (folder / "two" / "x.bin").write_bytes(b"1")

    assert seen(files, make) == ["x.bin"]
    before = files.snapshot()
    for name in (".hidden", "__pycache__/x.pyc"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    assert files.snapshot() == before


def test_a_file_that_is_found_later_counts_as_changed_only_if_it_is_newer_than_the_server(tmp_path: Path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.touch()
    new.touch()
    os.utime(old, (1000, 1000))
    os.utime(new, (2000, 2000))
    files = WatchedFiles([])
    before = files.snapshot()
    files.add([str(old), str(new)])
    files.add_unchanged_files(before, since=2000.05)
    assert list(before) == [str(old)]
