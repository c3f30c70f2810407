"""`${NAME}` and `${NAME:-default}` in a server's settings: filled in when it starts, and hidden in what is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote

from defserve.errors import UsageError
from defserve.redaction import MASK

VARIABLE: Final = re.compile(r"(\$?)\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
# A shorter value is hidden only where it stands alone: as a part of other words it would hide half of the text.
_SHORT: Final = 4


class UnsetVariable(UsageError):
    """A variable is not set and has no default. `variable` is its name."""

    def __init__(self, variable: str) -> None:
        self.variable = variable
        super().__init__(
            f"the variable {variable} is not set",
            fix=f"export {variable}=… and start the kernel again, or write ${{{variable}:-default}}",
        )


def fill(text: str, environ: Mapping[str, str]) -> str:
    """The text with its variables filled in. `$${NAME}` stays as `${NAME}`. Raises UnsetVariable."""

    def value(found: re.Match[str]) -> str:
        if found[1]:
            return found[0][1:]
        name: str = found[2]
        default: str | None = found[3]
        filled = environ.get(name, default)
        if filled is None:
            raise UnsetVariable(name)
        return filled

    return VARIABLE.sub(value, text)


def names_in(texts: Iterable[str]) -> set[str]:
    """The variables that the texts use."""
    return {found[2] for text in texts for found in VARIABLE.finditer(text) if not found[1]}


def unset_in(texts: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """The variables without which `fill` raises."""
    found = (match for text in texts for match in VARIABLE.finditer(text) if not match[1] and match[3] is None)
    return sorted({match[2] for match in found} - environ.keys())


class Hidden:
    """Hides `values` in texts. A variable's value becomes `${NAME}` again; any other becomes `[redacted]`."""

    def __init__(self, variables: Mapping[str, str], others: Iterable[str] = ()) -> None:
        shown = dict.fromkeys(others, MASK) | {value: f"${{{name}}}" for name, value in variables.items()}
        forms = {form: instead for value, instead in shown.items() for form in _forms(value)}
        self.values, self._shown = tuple(shown), forms
        words = (
            re.escape(form) if len(form) >= _SHORT else rf"(?<!\w){re.escape(form)}(?!\w)"
            for form in sorted(forms, key=len, reverse=True)
        )
        self._pattern = re.compile("|".join(words)) if forms else None

    def __call__(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(lambda found: self._shown[found[0]], text)


def _forms(value: str) -> set[str]:
    """The value, and how it looks in JSON, in a Python literal and in a URL."""
    escaped = (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1])
    return {value, *escaped, quote(value), quote(value, safe="")} if value.strip() else set()
