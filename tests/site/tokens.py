"""The colours of the inspector, for the stylesheet of the site and for the pictures that are drawn for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .places import ROOT

SOURCE: Final = ROOT / "framework/defserve/inspector/page/styles/tokens.css"
# What stands before the declarations of a scheme: in the inspector, and on the site.
SCHEMES: Final = {
    "light": (":root{", ":root,[data-md-color-scheme=default]"),
    "dark": (":root[data-theme=dark]{", "[data-md-color-scheme=slate]"),
}
# A picture has a file for each scheme, with this after its name.
ENDINGS: Final = {"light": "", "dark": "-dark"}
_USE: Final = re.compile(r"var\(--([\w-]+)\)")


def tokens(scheme: str, source: Path = SOURCE) -> dict[str, str]:
    """Name to value."""
    rule = source.read_text("utf-8").partition(SCHEMES[scheme][0])[2].partition("}")[0]
    return dict(re.findall(r"--([\w-]+):([^;]+);", rule))


def stylesheet() -> str:
    """The tokens as rules of the site."""
    rules = {selector: tokens(scheme) for scheme, (_, selector) in SCHEMES.items()}
    return "".join(f"{selector}{{{_declared(named)}}}\n" for selector, named in rules.items())


def in_each_scheme(picture: str) -> dict[str, str]:
    """A picture that names tokens, with the colours of each scheme: by the ending of its file."""
    return {ending: _coloured(picture, tokens(scheme)) for scheme, ending in ENDINGS.items()}


def _declared(named: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in named.items())


def _coloured(picture: str, named: Mapping[str, str]) -> str:
    # Fonts are the same in both, and the dark scheme does not repeat them.
    known = {**tokens("light"), **named}
    return _USE.sub(lambda use: known[use[1]].replace('"', "'"), picture)
