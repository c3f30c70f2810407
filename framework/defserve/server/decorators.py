"""What decorators and `Server` share: bare or with options, wrong values are refused, errors name the author's line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, get_args

from defserve.binding.json_schemas import SchemaDialectName
from defserve.binding.signature import (
    LIST_OPTION_RULE,
    TEXT_OPTION_RULE,
    OptionRule,
    find_invalid_option,
    is_list_like,
    make_choice_option_rule,
)
from defserve.core.extension import Extension
from defserve.core.json_values import is_mapping
from defserve.errors import UsageError
from defserve.limits import Limits
from defserve.protocols.mcp.items import ICONS_OPTION_RULE
from defserve.protocols.mgp.terms import ConfirmPolicy, TrustLevel

if TYPE_CHECKING:
    from types import FrameType

    from defserve.protocols.mcp.items import ItemOptions


Options = TypeVar("Options", bound="ItemOptions")


def declare_or_decorate(name: str, declare: Callable[[Any], object], function: Any = None) -> Any:
    """Declare `function` and return it unchanged; without one, return the decorator that does so.

    `name` is how the author writes the decorator. Raises UsageError for a string in place of the function.
    """
    if isinstance(function, str):
        raise UsageError(
            f"@{name}({function!r}): options have names",
            where=find_author_location(),
            fix=f'@{name}(name="{function}")',
        )

    def decorator(function: Any) -> Any:
        declare(function)
        return function

    return decorator(function) if function is not None else decorator


def require_uri(name: str, uri: Any, example: str = "config://app") -> None:
    """Raises UsageError for a resource decorator without a URI."""
    if callable(uri):
        from defserve.binding.signature import find_source_location

        raise UsageError(f"@{name} needs a URI", where=find_source_location(uri), fix=f'write @{name}("{example}")')


def read_item_options(kind: type[Options], given: Mapping[str, Any], function: Any) -> Options:
    """The options that an author gave for a function. Raises UsageError for one that does not exist."""
    try:
        return kind(**given)
    except TypeError:
        from dataclasses import fields

        from defserve.binding.signature import find_source_location, get_function_name
        from defserve.server.options import DECORATOR_OPTION_FIXES, refuse_unknown_option

        subject = f"{get_function_name(function)}: {kind.__name__.removesuffix('Options').lower()}"
        refuse_unknown_option(
            given,
            [field.name for field in fields(kind)],
            subject,
            find_source_location(function),
            DECORATOR_OPTION_FIXES,
        )
        raise


def find_author_location() -> str:
    """`file.py:12` of the author's line that called into `defserve.server`."""
    from defserve.binding.signature import format_source_location

    frame = _author_frame()
    return format_source_location(frame.f_code.co_filename, frame.f_lineno)


def resolve_author_path(path: str | os.PathLike[str]) -> str:
    """A path that starts, if it is relative, in the folder of the author's file that called into `defserve.server`."""
    file = _author_frame().f_code.co_filename
    return os.path.join(os.path.dirname(file) if os.path.exists(file) else "", path)


def _author_frame() -> FrameType:
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("defserve.server."):
        frame = frame.f_back
    return frame


# -- Which values the options of `Server` may have. A wrong one would act as another, or fail only in a client.


def check_option_values(given: Mapping[str, Any]) -> None:
    """Raises UsageError for a value of an option of `Server` that is not possible. None is what was not given."""
    if (found := find_invalid_option(given, SERVER_OPTION_RULES)) is not None:
        raise UsageError(f"Server({found[0]}) is not possible", where=find_author_location(), fix=found[1])


def check_log_level(level: Any) -> None:
    """Raises UsageError for a level of `server.run` that does not exist."""
    from defserve.server.command_line import PYTHON_LOG_LEVELS

    if str(level).lower() not in PYTHON_LOG_LEVELS:
        raise UsageError(
            f"server.run(log_level={level!r}) is not possible",
            where=find_author_location(),
            fix=f"use one of {', '.join(map(repr, PYTHON_LOG_LEVELS))}",
        )


def _limits_fix(name: str, value: Any) -> str:
    said = ", ".join(f"{key}={limit!r}" for key, limit in value.items()) if is_mapping(value) else "tool=30"
    return f"write limits=Limits({said})"


def _is_egress(value: Any) -> bool:
    from defserve.guard.network import Egress

    return isinstance(value, Egress)


def _is_access_policy(value: Any) -> bool:
    from defserve.protocols.mgp.access import AccessPolicy

    return isinstance(value, AccessPolicy)


def _always(fix: str) -> Callable[[str, Any], str]:
    return lambda name, value: fix


SERVER_OPTION_RULES: Final[Mapping[str, OptionRule]] = {
    **dict.fromkeys(("name", "version", "title", "instructions", "description", "website_url"), TEXT_OPTION_RULE),
    **dict.fromkeys(("server_id", "shared", "namespace"), TEXT_OPTION_RULE),
    "confirm": make_choice_option_rule(*get_args(ConfirmPolicy)),
    "trust_level": make_choice_option_rule(*get_args(TrustLevel)),
    "dialect": make_choice_option_rule(*get_args(SchemaDialectName)),
    "granted": LIST_OPTION_RULE,
    "icons": ICONS_OPTION_RULE,
    "extensions": OptionRule(
        lambda value: is_list_like(value) and all(isinstance(one, Extension) for one in value),
        _always("give a list of objects of your subclasses of defserve.extending.Extension"),
    ),
    "limits": OptionRule(lambda value: isinstance(value, Limits), _limits_fix),
    "egress": OptionRule(_is_egress, _always('write egress=Egress(hosts=["api.example.com"])')),
    "policy": OptionRule(callable, _always("write policy=decide, a function of a PolicyRequest")),
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


# -- The options of `Server.run` and `Server.asgi` that say how a server is reached over the network.


class WebFields(TypedDict, total=False):
    """How a server is reached over the network; see `serve.http.app.HttpOptions` and `serve.network`.

    A bind that is not loopback needs `allowed_hosts` or `trusted_proxy`.
    `legacy_sse` also serves HTTP+SSE (2024-11-05), at `/sse` beside the endpoint. `rest` also serves
    `POST /tools/{name}` and `GET /openapi.json` there, for callers that do not speak the protocol; `metrics` serves
    `GET /metrics` for Prometheus. `stateless` opens no sessions: clients that need one are told so.

    `page` is for a person who opens the address in a browser: what this is, how to connect clients, the tools as a
    client without a token sees them. If it is left out, there is a page unless `auth` is set or the browser asks for
    another name than those of this machine. True shows it in these cases too, False never.

    `card=False` serves no server card and no AI catalog; everybody may read them, also behind `auth`.
    `openai_challenge` is the token with which OpenAI checks that the domain is yours.

    Who calls without a token is a stranger, whose word grants and confirms nothing. On a loopback address `local_token`
    writes a key to a file that only this user can read; who shows it is this user, as on stdio. On a unix socket
    `trust_same_user` makes every process of this user the local user.
    """

    allowed_hosts: Sequence[str]
    allowed_origins: Sequence[str]
    trusted_proxy: bool
    local_token: bool
    trust_same_user: bool
    certfile: str
    keyfile: str
    legacy_sse: bool
    rest: bool
    metrics: bool
    page: bool | None
    card: bool
    openai_challenge: str
    stateless: bool
