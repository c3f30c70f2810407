"""Creates projects from the template: its questions, its rendering, and the defaults that an author has to replace.

The files are the same, byte for byte, as with `cookiecutter`.
"""

from __future__ import annotations

import json
import keyword
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final, NamedTuple

from defserve.core.json_values import is_array, is_object
from defserve.errors import UsageError

ROOT = "{{cookiecutter.project_slug}}"


class CreatedProject(NamedTuple):
    """A new project: its folder, the answers that it was created from, and its files."""

    folder: Path
    answers: Mapping[str, str]
    files: tuple[str, ...]


def load_template_questions() -> TemplateQuestions:
    return TemplateQuestions(find_template_folder() / "cookiecutter")


def create_project(given: Mapping[str, str], output: Path) -> CreatedProject:
    """Create a project in a new folder below `output`. Raises UsageError if the folder exists."""
    asked = load_template_questions()
    answers = asked.complete(given)
    folder = output / answers["project_slug"]
    if folder.exists():
        raise UsageError(f"{folder} already exists", fix="use another --name or --output, or move the folder")
    files = dict(_render_files(find_template_folder(), asked, answers))
    for path, (text, source) in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text)
        shutil.copymode(source, target)
    return CreatedProject(folder, answers, tuple(sorted(files)))


def _render_files(
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
        patterns = asked.settings["_copy_without_render"]
        if any(fnmatch(path.as_posix(), pattern) for path in (inside, *inside.parents) for pattern in patterns):
            yield inside.as_posix(), (source.read_bytes(), source)
        else:
            yield name, (renderer.render(_text(source)).encode(), source)


def _text(path: Path) -> str:
    # Read as bytes, to keep the line endings.
    return path.read_bytes().decode()


# -- The questions of the template (`cookiecutter.json`), their defaults, and which answers are valid.


DERIVED_ANSWERS: Final = ("project_slug", "package_name")
"""Nobody is asked for these: they follow from the name."""


class TemplateQuestion(NamedTuple):
    """A question about a project. `choices` maps each possible answer to its description; empty for a free answer."""

    name: str
    prompt: str
    choices: Mapping[str, str]


class TemplateQuestions:
    """The questions of the template, in its order."""

    def __init__(self, folder: Path) -> None:
        self.settings: dict[str, Any] = json.loads((folder / "cookiecutter.json").read_text(encoding="utf-8"))

    def __iter__(self) -> Iterator[TemplateQuestion]:
        for name, value in self.settings.items():
            if not name.startswith("_"):
                yield self._question(name, value)

    def choices(self, name: str) -> Mapping[str, str]:
        """The possible answers with their descriptions; empty for a free answer."""
        return self._question(name, self.settings[name]).choices

    def _question(self, name: str, value: Any) -> TemplateQuestion:
        said = self.settings["__prompts__"][name]
        if not is_object(said):
            return TemplateQuestion(name, said, {})
        return TemplateQuestion(name, said["__prompt__"], {each: said.get(each, each) for each in value})

    def default(self, name: str, answers: Mapping[str, str]) -> str:
        """The default, which may depend on the answers before it."""
        value = self.settings[name]
        return value[0] if is_array(value) else TemplateRenderer({**self.settings, **answers}).render(value)

    def complete(self, given: Mapping[str, str]) -> dict[str, str]:
        """All answers: the given ones, defaults for the others, and what follows from both.

        Raises UsageError for an answer that is not valid.
        """
        answers: dict[str, str] = {}
        for name, value in self.settings.items():
            if name.startswith("_") and not (name.startswith("__") and isinstance(value, str)):
                continue
            answers[name] = given[name] if name in given else self.default(name, answers)
            try:
                self.check(name, answers[name])
            except UsageError as error:
                if name in given or name not in DERIVED_ANSWERS:
                    raise
                why = error.problem.removeprefix(f"{name}: ")
                raise UsageError(f"the name {answers['project_name']!r} cannot be used: {why}", fix=error.fix) from None
        return answers

    def check(self, name: str, answer: str) -> None:
        """Raises UsageError, with the fix, for an answer that would break the project."""
        pattern, fix = self.settings["_rules"].get(name, ("(?s).*", ""))
        allowed = self.settings.get(name)
        if is_array(allowed) and answer not in allowed:
            what = "template" if name == "body" else name
            raise UsageError(f"there is no {what} {answer!r}", fix=f"use one of {', '.join(allowed)}")
        if not re.fullmatch(pattern, answer):
            raise UsageError(f"{name}: {answer!r} is not valid", fix=fix)
        if name == "project_slug" and answer in self.settings["_reserved_names"]:
            raise UsageError(
                f"{name}: {answer!r} means something else to programs that read it",
                fix=f"use another, for example {answer}-server",
            )
        reserved = (*keyword.kwlist, *sys.stdlib_module_names, *self.settings["_reserved"])
        if name == "package_name" and answer in reserved:
            raise UsageError(
                f"{name}: {answer!r} is taken by another module", fix=f"use another, for example {answer}_server"
            )


# -- The part of Jinja that the project template uses: `{{ … }}` with a value, a table, a filter or a file.
#
# Anything else in a template is an error, because Cookiecutter would create a different project.


EXPRESSION: Final = re.compile(r"\{\{\s*(.+?)\s*\}\}")
UNKNOWN: Final = re.compile(r"\{[%#]")
VALUE: Final = re.compile(r"cookiecutter\.(\w+)(?:\[cookiecutter\.(\w+)\])?((?:\|\w+(?:\([^()]*\))?)*)")
FILTER: Final = re.compile(r"\|(\w+)(?:\('([^']*)', '([^']*)'\))?")
FUNCTION: Final = re.compile(r"(\w+)\((?:\"([^\"]*)\")?\)")

FILTERS: Final[Mapping[str, Callable[..., str]]] = {"lower": str.lower, "replace": str.replace}


class TemplateRenderer:
    """Renders with these values. `functions` return texts from other files, which are rendered too."""

    def __init__(self, values: Mapping[str, Any], functions: Mapping[str, Callable[..., str]] | None = None) -> None:
        self.values, self.functions = values, functions or {}

    def render(self, text: str) -> str:
        """The text with every expression replaced. Raises UsageError for an unknown expression."""
        if found := UNKNOWN.search(text):
            raise _unknown(text[found.start() :].partition("\n")[0])
        return EXPRESSION.sub(lambda match: self._evaluate(match[1]), text)

    def _evaluate(self, expression: str) -> str:
        if match := VALUE.fullmatch(expression):
            return self._value(*match.groups())
        match = FUNCTION.fullmatch(expression)
        if match is None or match[1] not in self.functions:
            raise _unknown(expression)
        given = () if match[2] is None else (match[2],)
        return self.render(self.functions[match[1]](*given).removesuffix("\n"))

    def _value(self, name: str, key: str | None, filters: str) -> str:
        try:
            value = self.values[name] if key is None else self.values[name][self.values[key]]
        except KeyError as missing:
            raise _unknown(f"cookiecutter.{missing.args[0]}") from None
        for filter, old, new in FILTER.findall(filters):
            if filter not in FILTERS:
                raise _unknown(f"|{filter}")
            value = FILTERS[filter](value, *((old, new) if old else ()))
        return str(value)


def _unknown(what: str) -> UsageError:
    return UsageError(
        f"the template has an expression that is not known: {what!r}",
        fix="use what tooling/project_template.py supports",
    )


# -- Where the templates are: in the installed package, or in the repository that it runs from.


PACKAGE = Path(__file__).parents[1]


def find_template_folder() -> Path:
    """The folder that holds `cookiecutter/` and `templates/`."""
    # An editable install has no copy; it uses the folders of its repository.
    for folder in (PACKAGE / "_data", PACKAGE.parents[1]):
        if (folder / "cookiecutter" / "cookiecutter.json").is_file():
            return folder
    raise UsageError(
        "the templates are not installed", fix="reinstall defserve: pip install --force-reinstall defserve"
    )


# -- Defaults of the template that are still in a project, and that its author has to replace.


FILES: Final = ("pyproject.toml", "README.md", "LICENSE", "server.json", "manifest.json", "Dockerfile")


class Placeholder(NamedTuple):
    """A default, and the files that still contain it."""

    about: str
    text: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.about} ({self.text})"


def find_placeholders(folder: Path, asked: TemplateQuestions) -> list[Placeholder]:
    """The placeholders in the project `folder`."""
    texts = {name: (folder / name).read_text("utf-8", "replace") for name in FILES if (folder / name).is_file()}
    return [
        Placeholder(about, text, files)
        for about, text, forms in _iter_placeholders(asked)
        if (files := tuple(name for name, whole in texts.items() if any(form in f"\n{whole}\n" for form in forms)))
    ]


def _iter_placeholders(asked: TemplateQuestions) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """What it is, its text, and the forms in which files contain it, which are unlikely to occur by chance."""
    author, user = asked.settings["author"], asked.settings["github_user"]
    yield "author", author, (f'"{author}"', f") {author}\n")
    yield "GitHub account", user, (f"github.com/{user}/",)
    yield "registry name", f"io.github.{user}/…", (f"io.github.{user}/",)
    for description in asked.settings["_descriptions"].values():
        yield "description", description, (f'"{description}"', f"\n{description}\n")
