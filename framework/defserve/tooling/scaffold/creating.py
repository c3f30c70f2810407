"""Renders the project template into a folder. The files are the same, byte for byte, as with `cookiecutter`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from defserve.errors import UsageError
from defserve.tooling.scaffold.data import data
from defserve.tooling.scaffold.questions import TemplateQuestions
from defserve.tooling.scaffold.rendering import TemplateRenderer

ROOT = "{{cookiecutter.project_slug}}"


class CreatedProject(NamedTuple):
    """A new project: its folder, the answers that it was created from, and its files."""

    folder: Path
    answers: Mapping[str, str]
    files: tuple[str, ...]


def questions() -> TemplateQuestions:
    return TemplateQuestions(data() / "cookiecutter")


def create(given: Mapping[str, str], output: Path) -> CreatedProject:
    """Create a project in a new folder below `output`. Raises UsageError if the folder exists."""
    asked = questions()
    answers = asked.complete(given)
    folder = output / answers["project_slug"]
    if folder.exists():
        raise UsageError(f"{folder} already exists", fix="use another --name or --output, or move the folder")
    files = dict(_rendered(data(), asked, answers))
    for path, (text, source) in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text)
        shutil.copymode(source, target)
    return CreatedProject(folder, answers, tuple(sorted(files)))


def _rendered(
    home: Path, asked: TemplateQuestions, answers: Mapping[str, str]
) -> Iterator[tuple[str, tuple[bytes, Path]]]:
    """Path in the project → content, and the file of the template."""
    scaffold, body = home / "cookiecutter", home / "templates" / answers["body"]

    def body_file(name: str) -> str:
        return _text(body / name)

    renderer = TemplateRenderer(
        {**asked.settings, **answers},
        {"body": body_file, "licence": lambda: _text(scaffold / "licences" / answers["licence"])},
    )
    for source in sorted(path for path in (scaffold / ROOT).rglob("*") if path.is_file()):
        inside = source.relative_to(scaffold / ROOT)
        if "__pycache__" in inside.parts:
            continue
        name = renderer.render(inside.as_posix())
        if name.endswith("/"):
            continue  # its name is empty: not a file of this body
        if _is_copied(inside, asked.settings["_copy_without_render"]):
            yield inside.as_posix(), (source.read_bytes(), source)
        else:
            yield name, (renderer.render(_text(source)).encode(), source)


def _is_copied(inside: Path, patterns: list[str]) -> bool:
    return any(fnmatch(path.as_posix(), pattern) for path in (inside, *inside.parents) for pattern in patterns)


def _text(path: Path) -> str:
    # Read as bytes, to keep the line endings.
    return path.read_bytes().decode()
