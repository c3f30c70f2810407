"""The questions of the template (`cookiecutter.json`), their defaults, and which answers are valid."""

from __future__ import annotations

import json
import keyword
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from defserve.errors import UsageError
from defserve.tooling.scaffold.rendering import TemplateRenderer
from defserve.wire.jsonvalue import is_array, is_object

DERIVED: Final = ("project_slug", "package_name")
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
                if name in given or name not in DERIVED:
                    raise
                why = error.problem.removeprefix(f"{name}: ")
                raise UsageError(f"the name {answers['project_name']!r} cannot be used: {why}", fix=error.fix) from None
        return answers

    def check(self, name: str, answer: str) -> None:
        """Raises UsageError, with the fix, for an answer that would break the project."""
        pattern, fix = self.settings["_rules"].get(name, ("(?s).*", ""))
        allowed = self.settings.get(name)
        if is_array(allowed) and answer not in allowed:
            raise UsageError(f"{name} cannot be {answer!r}", fix=f"use one of {', '.join(allowed)}")
        if not re.fullmatch(pattern, answer):
            raise UsageError(f"{name}: {answer!r} is not valid", fix=fix)
        if name == "project_slug" and answer in self.settings["_reserved_names"]:
            raise UsageError(
                f"{name}: {answer!r} means something else to programs that read it",
                fix=f"use another, for example {answer}-server",
            )
        if name == "package_name" and self._taken(answer):
            raise UsageError(
                f"{name}: {answer!r} is taken by another module", fix=f"use another, for example {answer}_server"
            )

    def _taken(self, package: str) -> bool:
        return keyword.iskeyword(package) or package in sys.stdlib_module_names or package in self.settings["_reserved"]
