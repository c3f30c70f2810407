"""What a docstring says: the description without its parameter sections, and one text for each parameter.

It reads four styles (Google, NumPy, reST, epydoc). A docstring is parsed when it is first needed, and one without
a parameter section never imports docstring_parser (10 ms).
"""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import Any

_PARAMETERS = r"(?:Args|Arguments|Parameters|Params|Other Parameters|Keyword Args|Keyword Arguments)"
_CUT = rf"(?:{_PARAMETERS}|Returns?|Raises|Yields?)"
_FIELDS = r"(?:param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|except|exception|yields?|ytype)"
_UNDERLINED = r"^\S.*\n-{3,}[ \t]*$"

# Style -> what begins a section on parameters, and the sections that are cut from the description.
# Strings, not compiled: compiling them all costs 3 ms, and many servers have only plain docstrings.
_STYLES: dict[str, tuple[str, str]] = {
    "GOOGLE": (
        rf"^{_PARAMETERS}:[ \t]*$",
        rf"^{_CUT}:[ \t]*\n(?:(?:[ \t]+\S.*|[ \t]*)(?:\n|\Z))*?(?=^\S|\Z)",
    ),
    "NUMPYDOC": (
        rf"^{_PARAMETERS}[ \t]*\n-{{3,}}[ \t]*$",
        rf"^{_CUT}[ \t]*\n-{{3,}}[ \t]*\n(?:.*(?:\n|\Z))*?(?={_UNDERLINED}|\Z)",
    ),
    "REST": (
        r"^:(?:param|parameter|arg|argument|key|keyword)\b",
        rf"^:{_FIELDS}\b[^:\n]*:.*(?:\n[ \t]+\S.*)*\n?",
    ),
    "EPYDOC": (
        r"^@(?:param|parameter|arg|argument|key|keyword)\b",
        rf"^@{_FIELDS}\b[^:\n]*:.*(?:\n[ \t]+\S.*)*\n?",
    ),
}


class Docs:
    """One docstring, read on demand."""

    __slots__ = ("_source", "_text", "_description", "_parameters")

    def __init__(self, source: str | None) -> None:
        self._source = source
        self._text: str | None = None
        self._description: str | None = None
        self._parameters: dict[str, str] | None = None

    @property
    def text(self) -> str:
        """The whole docstring, unindented."""
        if self._text is None:
            self._text = cleandoc(self._source).strip() if self._source else ""
        return self._text

    @property
    def description(self) -> str | None:
        """The text without the sections on parameters, results and exceptions."""
        if self._description is None:
            text = self.text
            if "\n" in text:
                for _, sections in _STYLES.values():
                    text = re.sub(sections, "", text, flags=re.MULTILINE)
                text = re.sub(r"\n{3,}", "\n\n", text).strip()
            self._description = text
        return self._description or None

    def parameter(self, name: str) -> str | None:
        """What the docstring says about one parameter."""
        if self._parameters is None:
            self._parameters = _read_parameters(self.text)
        return self._parameters.get(name)


def _read_parameters(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    if "\n" not in text and text[:1] not in (":", "@"):
        return found
    for style, (mark, _) in _STYLES.items():
        if not re.search(mark, text, re.MULTILINE):
            continue
        for parameter in _parse(text, style):
            description = " ".join((parameter.description or "").split())
            for name in parameter.arg_name.split(","):
                if description:
                    found.setdefault(name.strip().lstrip("*"), description)
    return found


def _parse(text: str, style: str) -> list[Any]:
    import docstring_parser

    try:
        return list(docstring_parser.parse(text, docstring_parser.DocstringStyle[style]).params)
    except docstring_parser.ParseError:
        return []
