"""Which values the options of `Server` may have. A wrong one would act as another, or fail only in a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from defserve.core.extension import Extension
from defserve.errors import UsageError
from defserve.limits import Limits
from defserve.protocols.mgp.options import ConfirmPolicy, TrustLevel
from defserve.server.decorators import caller
from defserve.wire.jsonvalue import is_mapping


class Rule:
    """What an option may be, and what to write instead. A secret is not shown."""

    __slots__ = ("fits", "fix", "is_secret")

    def __init__(self, fits: Callable[[Any], bool], fix: Callable[[str, Any], str], *, is_secret: bool = False) -> None:
        self.fits, self.fix, self.is_secret = fits, fix, is_secret


def check_values(given: Mapping[str, Any]) -> None:
    """Raises UsageError for a value of an option of `Server` that is not possible. None is what was not given."""
    for name, value in given.items():
        rule = RULES.get(name) if value is not None else None
        if rule is not None and not rule.fits(value):
            shown = "…" if rule.is_secret else repr(value)
            raise UsageError(f"Server({name}={shown}) is not possible", where=caller(), fix=rule.fix(name, value))


def check_log_level(level: Any) -> None:
    """Raises UsageError for a level of `server.run` that does not exist."""
    from defserve.runner.command_line import LEVELS

    if str(level).lower() not in LEVELS:
        raise UsageError(
            f"server.run(log_level={level!r}) is not possible",
            where=caller(),
            fix=f"use one of {', '.join(map(repr, LEVELS))}",
        )


def _one_of(choices: tuple[Any, ...]) -> Rule:
    return Rule(choices.__contains__, lambda name, value: f"use one of {', '.join(map(repr, choices))}")


def _is_list(value: Any) -> bool:
    return not isinstance(value, str) and hasattr(value, "__iter__")


def _limits_fix(name: str, value: Any) -> str:
    said = ", ".join(f"{key}={limit!r}" for key, limit in value.items()) if is_mapping(value) else "tool=30"
    return f"write limits=Limits({said})"


def _is_egress(value: Any) -> bool:
    from defserve.net.egress import Egress

    return isinstance(value, Egress)


def _is_access_policy(value: Any) -> bool:
    from defserve.protocols.mgp.access.policy import AccessPolicy

    return isinstance(value, AccessPolicy)


def _always(fix: str) -> Callable[[str, Any], str]:
    return lambda name, value: fix


_TEXT = Rule(lambda value: isinstance(value, str), lambda name, value: f'write {name}="{value}"')
_LIST = Rule(_is_list, lambda name, value: f"write {name}=[{value!r}]")

RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(
        ("name", "version", "title", "instructions", "description", "website_url", "server_id", "shared"), _TEXT
    ),
    "confirm": _one_of(get_args(ConfirmPolicy)),
    "trust_level": _one_of(get_args(TrustLevel)),
    "granted": _LIST,
    "icons": _LIST,
    "extensions": Rule(
        lambda value: _is_list(value) and all(isinstance(one, Extension) for one in value),
        _always("give a list of objects of your subclasses of defserve.extending.Extension"),
    ),
    "limits": Rule(lambda value: isinstance(value, Limits), _limits_fix),
    "egress": Rule(_is_egress, _always('write egress=Egress(hosts=["api.example.com"])')),
    "access": Rule(_is_access_policy, _always('write access=AccessPolicy("opt-in", entries=[…])')),
    "secret": Rule(lambda value: isinstance(value, str | bytes), _always("give a text, or bytes"), is_secret=True),
    "store": Rule(
        lambda value: isinstance(value, str) or hasattr(value, "change"),
        _always("give the address of a store ('sqlite:///notes.db'), or an object with the methods of Store"),
    ),
    "lifespan": Rule(callable, _always("give a function with @asynccontextmanager that takes the server")),
}
