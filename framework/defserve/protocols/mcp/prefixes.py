"""The names of what is mounted: `p_tool`, `s://p/rest`, and back again."""

from __future__ import annotations

from defserve.errors import UsageError
from defserve.protocols.mcp.items import NAME


class Prefix:
    """Renames what a mounted server offers. Without a text, everything keeps its name."""

    __slots__ = ("text",)

    def __init__(self, text: str | None) -> None:
        if text is not None and not NAME.fullmatch(text):
            raise UsageError(f"prefix {text!r} is not made of A-Z a-z 0-9 _ . -", fix="use a plain word")
        self.text = text

    def name(self, name: str) -> str:
        """The name of a tool or prompt outside."""
        return f"{self.text}_{name}" if self.text else name

    def uri(self, uri: str) -> str:
        """The URI of a resource, or a template, outside."""
        if not self.text:
            return uri
        scheme, separator, rest = uri.partition("://")
        return f"{scheme}://{self.text}/{rest}" if separator else f"{self.text}+{uri}"

    def inner_uri(self, uri: str) -> str | None:
        """The URI inside for one outside; None if it does not have the prefix."""
        if not self.text:
            return uri
        scheme, separator, rest = uri.partition("://")
        if separator:
            return f"{scheme}://{rest[len(self.text) + 1 :]}" if rest.startswith(f"{self.text}/") else None
        return uri[len(self.text) + 1 :] if uri.startswith(f"{self.text}+") else None

    def is_prefix_of(self, name: str) -> bool:
        """Whether a name, or a URI, outside is one that this prefix gives. Without a text it gives none."""
        if not self.text:
            return False
        return name.startswith(f"{self.text}_") or (":" in name and self.inner_uri(name) is not None)

    def completion(self, key: str) -> str:
        """The key of a completion outside: its target, a blank, and the argument."""
        target, _, argument = key.rpartition(" ")
        return f"{self.uri(target) if ':' in target else self.name(target)} {argument}"
