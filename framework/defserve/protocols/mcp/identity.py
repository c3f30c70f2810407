"""MCP `Implementation`: who this server says it is (schema: serverInfo, icons, instructions)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from defserve.base.frozen import Frozen
from defserve.errors import UsageError
from defserve.protocols.mcp.versions import features


class Icon(Frozen):
    """An icon of a server, tool, resource or prompt. `src` is an https: or data: URI."""

    src: str
    mime_type: str | None = None
    sizes: Sequence[str] = ()
    theme: str | None = None

    def __post_init__(self) -> None:
        if self.theme not in (None, "light", "dark"):
            raise UsageError(f"Icon(theme={self.theme!r}) is not possible", fix="use one of 'light', 'dark'")

    def wire(self) -> dict[str, Any]:
        """The icon for the wire, without empty fields."""
        fields = {"src": self.src, "mimeType": self.mime_type, "sizes": list(self.sizes), "theme": self.theme}
        return {key: value for key, value in fields.items() if value}


def icons_wire(icons: Sequence[Icon | str | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Icons in any of the forms authors write, for the wire."""
    return [
        icon.wire() if isinstance(icon, Icon) else {"src": icon} if isinstance(icon, str) else dict(icon)
        for icon in icons
    ]


class Identity:
    """Name, version and the rest; the version is looked up when first asked for (importlib.metadata costs 36 ms)."""

    def __init__(
        self,
        name: str,
        version: str | None = None,
        *,
        title: str | None = None,
        instructions: str | None = None,
        description: str | None = None,
        website_url: str | None = None,
        icons: Sequence[Icon | str | Mapping[str, Any]] = (),
        distribution: str | None = None,
    ) -> None:
        self.name, self._version, self.title = name, version, title
        self.instructions, self.description, self.website_url = instructions, description, website_url
        self.icons, self._distribution = tuple(icons), distribution
        self._wire: dict[str, dict[str, Any]] = {}

    @property
    def version(self) -> str:
        if self._version is None:
            self._version = _distribution_version(self._distribution) or "0.0.0"
        return self._version

    def info(self, version: str) -> dict[str, Any]:
        """`Implementation` as a version of the protocol knows it."""
        if (known := self._wire.get(version)) is None:
            known = self._wire[version] = self._info(features(version))
        return known

    def _info(self, has: frozenset[str]) -> dict[str, Any]:
        info: dict[str, Any] = {"name": self.name, "version": self.version}
        if self.title and "titles" in has:
            info["title"] = self.title
        if "website" in has:
            more = {"description": self.description, "websiteUrl": self.website_url, "icons": icons_wire(self.icons)}
            info |= {key: value for key, value in more.items() if value}
        return info


def _distribution_version(module: str | None) -> str | None:
    """The version of the installed distribution that a module belongs to; None for a loose script."""
    if not module or module == "__main__":
        return None
    from importlib import metadata

    package = module.partition(".")[0]
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        pass
    # Finding a distribution with another name reads the files of all of them (40 to 170 ms); a loose script has none.
    origin = getattr(sys.modules.get(package), "__file__", None) or ""
    names = metadata.packages_distributions().get(package) if "-packages" in origin else None
    return metadata.version(names[0]) if names else None
