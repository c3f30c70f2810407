"""The part of Jinja that the project template uses: `{{ … }}` with a value, a table, a filter or a file.

Anything else in a template is an error, because Cookiecutter would create a different project.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from defserve.errors import UsageError

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
        fix="use what tooling/scaffold/rendering.py supports",
    )
