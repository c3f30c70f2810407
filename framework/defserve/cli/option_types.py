"""Types of option values: what `type=` of an option calls."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from typing import Final

SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
LONGEST_TOKEN: Final = 65_536


def seconds(text: str) -> float:
    """A duration such as `90s`, `15m` or `30d`; without a unit, seconds."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhdw]?)", text)
    if found is None or not float(found[1]):
        raise ArgumentTypeError(f"{text!r} is not a duration; write 90s, 15m, 12h, 30d or 4w")
    return float(found[1]) * SECONDS[found[2]]


def positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def token(text: str) -> str:
    """A token, or the one in a file: `@FILE`. No token begins with `@`."""
    if not text.startswith("@"):
        return text
    try:
        with open(text[1:], "rb") as file:
            found = file.read(LONGEST_TOKEN + 1).decode("ascii").strip()
    except OSError as error:
        raise ArgumentTypeError(f"cannot read {text[1:]}: {error.strerror}; write --token @FILE") from None
    except UnicodeDecodeError:
        found = ""
    if not found or len(found) > LONGEST_TOKEN or len(found.split()) > 1:
        raise ArgumentTypeError(
            f"{text[1:]} does not hold one token; `defserve keys create --out FILE` writes such a file"
        )
    return found
