"""Metrics of several processes as one text: the format wants the lines of a metric side by side."""

from __future__ import annotations

from collections.abc import Iterable

HELP, COMMENT = "# HELP ", "#"


def merged(texts: Iterable[str]) -> str:
    """Texts in the Prometheus format, of which each line is of another process. The first one's comments are kept."""
    families: dict[str, list[str]] = {}
    for text in texts:
        comments_of, lines = "", families.setdefault("", [])
        for line in text.splitlines():
            if line.startswith(HELP):
                name = line.split(" ", 3)[2]
                is_new = name not in families
                lines, comments_of = families.setdefault(name, []), name if is_new else ""
            if not line.startswith(COMMENT) or comments_of:
                lines.append(line)
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


def labelled(text: str, label: str) -> str:
    """The text with one more label, such as `worker="1"`, on every sample."""
    return "".join(f"{_with_label(line, label)}\n" for line in text.splitlines())


def _with_label(line: str, label: str) -> str:
    if not line or line.startswith(COMMENT):
        return line
    name, brace, rest = line.partition("{")
    if not brace or " " in name:
        name, _, rest = line.partition(" ")
        return f"{name}{{{label}}} {rest}"
    return f"{name}{{{label}{',' if not rest.startswith('}') else ''}{rest}"
