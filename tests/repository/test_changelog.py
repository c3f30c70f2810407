"""The changelog can be read by people and by the release, and agrees with the version."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.release.readme import with_absolute_links
from tests.repository import changelog
from tests.repository.changelog import ROOT, main, problems, sections, version
from tests.rows import for_each_row

GOOD = """# Changelog

## Unreleased

### Topics

- A thing.

## 0.2.0 - 2026-02-01

What is new.

### Tools and schemas

- A thing, see [tools](docs/tools.md#files).
- **Breaking:** **Security:** another **thing**.

### Inspector

- A thing.

## 0.1.0 - 2026-01-01

The first one.

### Added

**Servers**

- A thing.
"""


def test_ours_is_in_order_and_begins_with_the_first_release() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert list(problems(text, version())) == []
    assert sections(text)[-1].title.startswith("0.1.0 - ")


def test_a_good_one_has_no_problems() -> None:
    assert list(problems(GOOD, "0.2.0")) == []
    assert list(problems(GOOD, "0.3.0")) == []


@for_each_row(
    ("said", "instead", "problem"),
    [
        ("## Unreleased", "## Soon", "the first section is not '## Unreleased'"),
        ("### Topics", "### Topic", "'### Topic' under Unreleased is none of Getting started, "),
        ("### Topics", "### Added", "'### Added' under Unreleased is none of Getting started, "),
        ("### Inspector", "### Added", "'### Added' under 0.2.0 - 2026-02-01 is none of Getting started, "),
        ("### Inspector", "### Tools and schemas", "'### Tools and schemas' stands twice under 0.2.0"),
        (
            "### Inspector",
            "### Getting started",
            "'### Getting started' under 0.2.0 - 2026-02-01 belongs above '### Tools",
        ),
        ("**Breaking:**", "**Breaks:**", "'**Breaks:**' under 0.2.0 - 2026-02-01 is none of **Breaking:**, "),
        ("**Security:**", "**Security**", "'**Security**' under 0.2.0 - 2026-02-01 is none of **Breaking:**, "),
        ("0.2.0 - 2026-02-01", "0.2 (February)", "'## 0.2 (February)' is not '## 1.2.3 - 2026-01-31'"),
        ("2026-02-01", "2026-02-30", "'## 0.2.0 - 2026-02-30' has no such day"),
        ("## 0.2.0", "## 0.0.9", "0.0.9 - 2026-02-01 stands above 0.1.0 - 2026-01-01"),
        (GOOD[GOOD.index("The first one.") :], "", "'## 0.1.0 - 2026-01-01' says nothing"),
        ("## 0.2.0", "## 0.10.0", "0.10.0 - 2026-02-01 is above the version 0.2.0"),
    ],
)
def test_what_is_wrong_is_named(said: str, instead: str, problem: str) -> None:
    (found,) = problems(GOOD.replace(said, instead), "0.2.0")
    assert found.startswith(problem)


def test_the_notes_of_a_release_are_its_section(capsys: pytest.CaptureFixture[str]) -> None:
    released = next(section for section in sections((ROOT / "CHANGELOG.md").read_text("utf-8"))[1:])
    number = released.title.partition(" ")[0]
    if number == version():
        assert main([f"v{number}"]) == 0
        assert capsys.readouterr().out == released.text + "\n"
    assert main(["v99.0.0"]) == 1
    assert "the tag v99.0.0 is not" in capsys.readouterr().err


def test_the_notes_of_a_release_link_to_the_files_of_its_tag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "CHANGELOG.md").write_text(GOOD, encoding="utf-8")
    monkeypatch.setattr(changelog, "ROOT", tmp_path)
    monkeypatch.setattr(changelog, "version", lambda: "0.2.0")
    assert main(["v0.2.0", "ada/defserve"]) == 0
    notes = capsys.readouterr().out
    assert notes.startswith("What is new.\n\n### Tools and schemas\n")
    assert "[tools](https://github.com/ada/defserve/blob/v0.2.0/docs/tools.md#files)" in notes
    assert notes.endswith("### Inspector\n\n- A thing.\n")


def test_every_link_of_ours_leads_to_a_file() -> None:
    with_absolute_links((ROOT / "CHANGELOG.md").read_text("utf-8"), "ada/defserve", "v1.2.3")
