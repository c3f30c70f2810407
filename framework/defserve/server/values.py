"""Which values the options of `Server` may have. A wrong one would act as another, or fail only in a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from defserve.binding.option_rules import LIST, TEXT, OptionRule, impossible, is_list, one_of
from defserve.core.extension import Extension
from defserve.errors import UsageError
from defserve.limits import Limits
from defserve.protocols.mgp.options import ConfirmPolicy, TrustLevel
from defserve.server.decorators import caller
from defserve.wire.jsonvalue import is_mapping


def check_values(given: Mapping[str, Any]) -> None:
    """Raises UsageError for a value of an option of `Server` that is not possible. None is what was not given."""
    if (found := impossible(given, RULES)) is not None:
        raise UsageError(f"Server({found[0]}) is not possible", where=caller(), fix=found[1])


def check_log_level(level: Any) -> None:
    """Raises UsageError for a level of `server.run` that does not exist."""
    from defserve.runner.command_line import LEVELS

    if str(level).lower() not in LEVELS:
        raise UsageError(
            f"server.run(log_level={level!r}) is not possible",
            where=caller(),
            fix=f"use one of {', '.join(map(repr, LEVELS))}",
        )


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


RULES: Final[Mapping[str, OptionRule]] = {
    **dict.fromkeys(("name", "version", "title", "instructions", "description", "website_url"), TEXT),
    **dict.fromkeys(("server_id", "shared", "namespace"), TEXT),
    "confirm": one_of(*get_args(ConfirmPolicy)),
    "trust_level": one_of(*get_args(TrustLevel)),
    "granted": LIST,
    "icons": LIST,
    "extensions": OptionRule(
        lambda value: is_list(value) and all(isinstance(one, Extension) for one in value),
        _always("give a list of objects of your subclasses of defserve.extending.Extension"),
    ),
    "limits": OptionRule(lambda value: isinstance(value, Limits), _limits_fix),
    "egress": OptionRule(_is_egress, _always('write egress=Egress(hosts=["api.example.com"])')),
    "access": OptionRule(_is_access_policy, _always('write access=AccessPolicy("opt-in", entries=[…])')),
    "secret": OptionRule(
        lambda value: isinstance(value, str | bytes), _always("give a text, or bytes"), is_secret=True
    ),
    "store": OptionRule(
        lambda value: isinstance(value, str) or hasattr(value, "change"),
        _always("give the address of a store ('sqlite:///notes.db'), or an object with the methods of Store"),
    ),
    "lifespan": OptionRule(callable, _always("give a function with @asynccontextmanager that takes the server")),
}
