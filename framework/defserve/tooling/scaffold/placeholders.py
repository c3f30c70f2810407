"""Defaults of the template that are still in a project, and that its author has to replace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from defserve.tooling.scaffold.questions import TemplateQuestions

FILES: Final = ("pyproject.toml", "README.md", "LICENSE", "server.json", "manifest.json", "Dockerfile")


class Placeholder(NamedTuple):
    """A default, and the files that still contain it."""

    about: str
    text: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.about} ({self.text})"


def placeholders(folder: Path, asked: TemplateQuestions) -> list[Placeholder]:
    """The placeholders in the project `folder`."""
    texts = {name: (folder / name).read_text("utf-8", "replace") for name in FILES if (folder / name).is_file()}
    return [
        Placeholder(about, text, files)
        for about, text, forms in _made_up(asked)
        if (files := tuple(name for name, whole in texts.items() if any(form in f"\n{whole}\n" for form in forms)))
    ]


def _made_up(asked: TemplateQuestions) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """What it is, its text, and the forms in which files contain it, which are unlikely to occur by chance."""
    author, user = asked.settings["author"], asked.settings["github_user"]
    yield "author", author, (f'"{author}"', f") {author}\n")
    yield "GitHub account", user, (f"github.com/{user}/",)
    yield "registry name", f"io.github.{user}/…", (f"io.github.{user}/",)
    for description in asked.settings["_descriptions"].values():
        yield "description", description, (f'"{description}"', f"\n{description}\n")
