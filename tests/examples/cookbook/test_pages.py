from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from defserve.cli import main
from tests.examples.cookbook.pages import (
    PAGES,
    PROGRAMS,
    ROOT,
    commands,
    is_shown,
    recipes,
    shown_files,
    with_files,
)
from tests.rows import for_each_row

LONGEST_PROGRAM = 60
PARTS = ("## The program", "## Run it", "## Why it's written this way", "## Pitfalls", "## See also")
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
TEST = re.compile(r"^```python[^\n]*\n((?:(?!```).)*?^def test_.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#([^)]*))?\)")


@for_each_row("page", recipes(), ids=lambda page: page.stem)
def test_a_page_shows_its_program_as_it_is(page: Path):
    assert page.read_text(encoding="utf-8") == with_files(page), "run: python -m tests.examples.cookbook.pages"
    assert any(file.startswith(f"examples/cookbook/{page.stem}") for file in shown_files(page))


@for_each_row("page", recipes(), ids=lambda page: page.stem)
def test_a_page_has_every_part(page: Path):
    headings = re.findall(r"^## .*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [heading for heading in headings if heading in PARTS] == list(PARTS)


@for_each_row("page", [*recipes(), PAGES / "index.md"], ids=lambda page: page.stem)
def test_each_link_leads_somewhere(page: Path):
    for target, anchor in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        there = page.parent / target
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_recipe_is_in_the_list_and_has_a_test_and_a_program():
    names = {page.stem for page in recipes()}
    listed = re.findall(r"\]\(([\w-]+)\.md\)", (PAGES / "index.md").read_text(encoding="utf-8"))
    programs = {path.stem for path in PROGRAMS.iterdir() if path.name != "__pycache__"}
    tested = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")} - {"pages"}
    assert sorted(listed) == sorted(names) == sorted(programs) == sorted(tested)
    assert len(names) >= 24


def test_every_file_of_the_cookbook_is_shown_and_none_is_long():
    files = [path for path in PROGRAMS.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    shown = {file for page in recipes() for file in shown_files(page)}
    assert {path.relative_to(ROOT).as_posix() for path in files} <= shown
    assert {path.name: n for path in files if (n := len(path.read_text().splitlines())) > LONGEST_PROGRAM} == {}


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command may load programs as `python FILE` does, under short names; afterwards nobody else finds them."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(PROGRAMS)):
            del sys.modules[name]


PYTHON = [file for file in sorted(PROGRAMS.rglob("*.py")) if file.name != "agent.py"]


@pytest.mark.slow
@pytest.mark.usefixtures("loading", "own_loop")
# Each with a loop of its own: a command that has run one leaves none.
@pytest.mark.parametrize("program", PYTHON, ids=lambda file: file.stem)
def test_a_program_passes_our_own_check(program: Path, capsys: pytest.CaptureFixture[str]):
    # A hook after the inference is granted by no host's default settings: the warning is right.
    strict = [] if program.stem == "compliance" else ["--strict"]
    assert main(["check", str(program), *strict]) == 0, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in recipes() if list(commands(page))], ids=lambda page: page.stem)
def test_whoever_types_what_a_page_says_sees_what_it_shows(page: Path, tmp_path: Path):
    shutil.copytree(PROGRAMS, tmp_path / "work", ignore=shutil.ignore_patterns("__pycache__"))
    for test in TEST.findall(page.read_text(encoding="utf-8")):
        (tmp_path / "work" / f"test_{page.stem}.py").write_text(test)
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    settings = {**os.environ, **path, "NO_COLOR": "1", "HOME": str(tmp_path)}
    typed = [*commands(page)]
    script = "\n".join(f"{command}\necho '---'" for command, _ in typed)
    told = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path / "work", env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    # Progress is drawn at a terminal, and gone when the call is over.
    *printed, _ = re.sub(r"^Calling .*\n", "", told.stdout.decode(), flags=re.MULTILINE).split("---\n")
    assert [(line, out) for (line, shown), out in zip(typed, printed, strict=True) if not is_shown(shown, out)] == []
