from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from defserve.kernel import Kernel
from defserve.kernel.config.loading import load_kernel_config
from tests.examples.cookbook.pages import PROGRAMS
from tests.forking.spawning import quick_arguments
from tests.waiting import until

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[3] / "docs" / "cookbook" / "kernel.md"


def quick_python(folder: Path) -> str:
    """A command that runs a script as Python does, only sooner."""
    command = folder / "python"
    words = shlex.join([sys.executable, *quick_arguments(Path("-"))[:-1]])
    command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    command.chmod(0o755)
    return str(command)


async def test_five_servers_are_one(tmp_path: Path):
    office = tmp_path / "office"
    office.mkdir()
    settings = {"PYTHON": quick_python(tmp_path), "OFFICE_FOLDER": str(office)}
    kernel = Kernel(load_kernel_config(PROGRAMS / "kernel" / "mgp.toml"), {**os.environ, **settings})
    async with kernel.server.connect() as client:
        await until(lambda: len(kernel.ps()) == 5 and all(row["tools"] for row in kernel.ps()))
        shown = re.findall(r"^(office\.\w+) +\w+ +[\d-]+ +(\d+) ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
        assert shown == [(row["id"], str(row["tools"])) for row in kernel.ps()], "the page shows other counts of tools"
        names = {tool["name"] for tool in await client.tools()}
        assert {"books_add_books", "charts_bar_chart", "drafts_restore", "files_read_file"} <= names
        assert "files_delete_file" not in names
        emma = {"title": "Emma", "author": "Austen", "year": 1815}
        assert await client.call("books_add_books", books=[emma]) == "1 added"
        assert await client.call("files_list_files", pattern="books.*") == ["books.db"]
        assert await client.call("drafts_replace", old="", new="Hello") == "Hello"
        assert (await client.call("orders_list_orders", limit=1))["next_after"] == 1
        text, picture = (await client.call_raw("charts_bar_chart", {"values": [1, 2]}))["content"]
        assert (text["type"], picture["mimeType"]) == ("text", "image/png")
