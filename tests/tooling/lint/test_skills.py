from __future__ import annotations

import sys
from pathlib import Path

import pytest

from defserve import Server
from tests.tooling.lint.reading import broken, only, read

HEAD = "---\nname: refunds\ndescription: Decide about refunds. Use it when somebody wants money back.\n{}---\n"


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    folder = tmp_path / "refunds"
    (folder / "docs").mkdir(parents=True)
    (folder / "SKILL.md").write_text(HEAD.format("") + "Read [the mail](docs/email.md).\n")
    (folder / "docs" / "email.md").write_text("Dear …\n")
    return folder


def checked(skill: Path) -> Server:
    server = Server("s", "1")
    server.skill(skill)
    return server


def test_a_good_skill_is_left_alone(skill: Path):
    (skill / ".DS_Store").touch()
    (skill / "__pycache__").mkdir()
    assert broken(read(checked(skill))) == []


def test_a_finding_names_the_skill_and_its_file(skill: Path):
    (skill / "server.key").touch()
    (found,) = only(read(checked(skill)), "skill-private-file")
    assert found.finding.subject == "skill 'refunds'"
    assert found.finding.where == str(skill / "SKILL.md")


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        ("server.key", "", "'server.key' looks like a private key, and every client can read it"),
        ("docs/credentials.json", "", "looks like credentials"),
        ("docs/notes.md", "token: ghp_" + "a" * 36, "'docs/notes.md' contains a GitHub token"),
    ],
)
def test_what_is_private_in_a_skill_is_found(skill: Path, path: str, text: str, problem: str):
    (skill / path).write_text(text)
    (found,) = only(read(checked(skill)), "skill-private-file")
    assert problem in found.finding.problem


@pytest.mark.parametrize("path", ["SKILL.md", "docs/email.md"])
def test_characters_that_people_do_not_see_are_found(skill: Path, path: str):
    with (skill / path).open("a") as file:
        file.write("Be kind.\U000e0041\n")
    (found,) = only(read(checked(skill)), "skill-hidden-characters")
    assert found.finding.problem == f"{path!r} contains tag character U+E0041"


def test_a_byte_order_mark_is_not_hidden(skill: Path):
    (skill / "docs" / "email.md").write_bytes(b"\xef\xbb\xbfDear\r\n")
    assert only(read(checked(skill)), "skill-hidden-characters") == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("metadata:\n  io.modelcontextprotocol/x: 1\n", "the reserved name 'io.modelcontextprotocol/x'"),
        (f"compatibility: {'x' * 501}\n", "its compatibility is longer than 500 characters"),
    ],
)
def test_frontmatter_that_clients_may_refuse_is_found(skill: Path, fields: str, problem: str):
    (skill / "SKILL.md").write_text(HEAD.format(fields))
    (found,) = only(read(checked(skill)), "skill-format")
    assert problem in found.finding.problem


def test_a_description_that_is_too_long_is_found(skill: Path):
    (skill / "SKILL.md").write_text(f"---\nname: refunds\ndescription: {'word ' * 300}\n---\n")
    assert "longer than 1024" in only(read(checked(skill)), "skill-format")[0].finding.problem


@pytest.mark.parametrize(
    ("link", "found"),
    [
        ("docs/email.md", False),
        ("./docs/email.md", False),
        ("docs/email.md#part", False),
        ("docs", False),
        ("docs/", False),
        ("https://example.org/x", False),
        ("mailto:a@example.org", False),
        ("#part", False),
        ("docs/mail.md", True),
        ("../other/SKILL.md", True),
        ("Docs/email.md", True),
    ],
)
def test_a_link_that_leads_nowhere_is_found(skill: Path, link: str, found: bool):
    (skill / "SKILL.md").write_text(HEAD.format("") + f"See [this]({link}) and [again]({link}).\n")
    assert len(only(read(checked(skill)), "skill-missing-file")) == found


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_file_that_is_not_served_is_found(skill: Path):
    (skill / "shared.md").symlink_to(skill.parent / "shared.md")
    (found,) = only(read(checked(skill)), "skill-left-out")
    assert found.finding.problem == "'shared.md' is not served: it is a symbolic link out of the folder"


def test_what_is_wrong_in_a_skill_inside_another_is_told_once(skill: Path):
    inner = skill / "inner"
    inner.mkdir()
    (inner / "SKILL.md").write_text("---\nname: inner\ndescription: Part of it.\n---\n")
    (inner / "id_rsa").touch()
    (found,) = only(read(checked(skill)), "skill-private-file")
    assert found.finding.subject == "skill 'inner'"


def test_skills_of_a_mounted_server_are_looked_at(skill: Path):
    (skill / "server.key").touch()
    parent = Server("parent", "1")
    parent.mount(checked(skill), prefix="shop")
    assert len(only(read(parent), "skill-private-file")) == 1
