"""What the README and the docs show can be pasted and works: each section is a test module of its own."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from defserve import Extension, Limits

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FILE_NAME = re.compile(r"# (\w+\.py)\n")

# The pages' tests use the `server` of their section, and write the snapshots they compare with.
SETTINGS = "[pytest]\naddopts = -p defserve.testing.plugin --strict-markers --update-schemas\nfilterwarnings = error\n"
CONFTEST = """
import pytest

@pytest.fixture
def server(request):
    return request.module.server
"""


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def modules(page: Path) -> dict[str, str]:
    """File name to code: of blocks that begin with a name, and of the rest of each section."""
    found: dict[str, str] = {}
    for number, section in enumerate(re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)):
        for block in blocks(section):
            named = FILE_NAME.match(block)
            name = named[1] if named else f"test_section_{number}.py"
            found[name] = f"{found.get(name, '')}{block}\n\n"
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_python_block_runs(page: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "framework"))
    pytester.makeini(SETTINGS)
    pytester.makeconftest(CONFTEST)
    code = modules(page)
    for name, text in code.items():
        (pytester.path / name).write_text(text, encoding="utf-8")
    shown = "".join(code.values()).count("\ndef test_")
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", *code)
    assert result.ret == (pytest.ExitCode.OK if shown else pytest.ExitCode.NO_TESTS_COLLECTED), result.stdout.str()
    assert result.parseoutcomes().get("passed", 0) >= shown


def test_every_limit_is_in_the_table():
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| \S", text_of("docs/limits-and-errors.md"), re.MULTILINE)
    assert rows == [(field.name, str(field.default)) for field in dataclasses.fields(Limits)]


def test_every_contribution_of_the_plug_is_in_the_table():
    table = text_of("docs/extending.md").partition("## Every contribution")[2]
    first_cells = "".join(re.findall(r"^\| (`[^|]*)", table, re.MULTILINE))
    contributions = {name for name in vars(Extension) if not name.startswith("_")} - {"name"}
    assert set(re.findall(r"`(\w+)[`(]", first_cells)) == contributions


def test_the_client_settings_are_json():
    settings: list[dict[str, Any]] = [json.loads(block) for block in blocks(text_of("README.md"), "json")]
    assert [list(each) for each in settings] == [["mcpServers"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_link_leads_somewhere(page: Path):
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_on_the_map():
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", text_of("docs/index.md")))
    assert linked == {page.name for page in PAGES[1:]} - {"index.md"}
