"""What the README shows can be pasted and works."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("source", blocks("python"))
def test_each_python_block_runs(source: str) -> None:
    exec(compile(source, str(README), "exec", dont_inherit=True), {"__name__": "readme"})


def test_the_client_settings_are_json() -> None:
    settings: list[dict[str, Any]] = [json.loads(source) for source in blocks("json")]
    assert [list(each) for each in settings] == [["mcpServers"]]


def test_each_link_leads_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert [link for link in links if not (README.parent / link).exists()] == []
    assert links
