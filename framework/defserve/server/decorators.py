"""What decorators and `Server` share: bare or with options, wrong values are refused, errors name the author's line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, get_args

from defserve.binding.signature import LIST, TEXT, OptionRule, impossible, is_list, one_of
from defserve.core.extension import Extension
from defserve.core.json_values import is_mapping
from defserve.errors import UsageError
from defserve.limits import Limits
from defserve.protocols.mgp.terms import ConfirmPolicy, TrustLevel

if TYPE_CHECKING:
    from types import FrameType

    from defserve.protocols.mcp.items import ItemOptions


Options = TypeVar("Options", bound="ItemOptions")


def decorate(name: str, declare: Callable[[Any], object], function: Any = None) -> Any:
    """Declare `function` and return it unchanged; without one, return the decorator that does so.

    `name` is how the author writes the decorator. Raises UsageError for a string in place of the function.
    """
    if isinstance(function, str):
        raise UsageError(
            f"@{name}({function!r}): options have names", where=caller(), fix=f'@{name}(name="{function}")'
        )

    def decorator(function: Any) -> Any:
        declare(function)
        return function

    return decorator(function) if function is not None else decorator


def need_uri(name: str, uri: Any, example: str = "config://app") -> None:
    """Raises UsageError for a resource decorator without a URI."""
    if callable(uri):
        from defserve.binding.signature import where

        raise UsageError(f"@{name} needs a URI", where=where(uri), fix=f'write @{name}("{example}")')


def read_options(kind: type[Options], given: Mapping[str, Any], function: Any) -> Options:
    """The options that an author gave for a function. Raises UsageError for one that does not exist."""
    try:
        return kind(**given)
    except TypeError:
        from dataclasses import fields

        from defserve.binding.signature import name_of, where
        from defserve.server.options import DECLARED, refuse_unknown

        subject = f"{name_of(function)}: {kind.__name__.removesuffix('Options').lower()}"
        refuse_unknown(given, [field.name for field in fields(kind)], subject, where(function), DECLARED)
        raise


def caller() -> str:
    """`file.py:12` of the author's line that called into `defserve.server`."""
    from defserve.binding.signature import place

    frame = _author_frame()
    return place(frame.f_code.co_filename, frame.f_lineno)


def from_caller(path: str | os.PathLike[str]) -> str:
    """A path that starts, if it is relative, in the folder of the author's file that called into `defserve.server`."""
    file = _author_frame().f_code.co_filename
    return os.path.join(os.path.dirname(file) if os.path.exists(file) else "", path)


def _author_frame() -> FrameType:
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("defserve.server."):
        frame = frame.f_back
    return frame


# -- Which values the options of `Server` may have. A wrong one would act as another, or fail only in a client.


def check_values(given: Mapping[str, Any]) -> None:
    """Raises UsageError for a value of an option of `Server` that is not possible. None is what was not given."""
    if (found := impossible(given, RULES)) is not None:
        raise UsageError(f"Server({found[0]}) is not possible", where=caller(), fix=found[1])


def check_log_level(level: Any) -> None:
    """Raises UsageError for a level of `server.run` that does not exist."""
    from defserve.server.command_line import LEVELS

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
    from defserve.guard.egress import Egress

    return isinstance(value, Egress)


def _is_access_policy(value: Any) -> bool:
    from defserve.protocols.mgp.access import AccessPolicy

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


# -- The options of `Server.run` and `Server.asgi` that say how a server is reached over the network.


class WebFields(TypedDict, total=False):
    """How a server is reached over the network; see `serve.http.app.HttpOptions` and `serve.network`.

    `parser` is `auto`, `httptools` or `h11`. A bind that is not loopback needs `allowed_hosts` or `trusted_proxy`.
    `legacy_sse` also serves HTTP+SSE (2024-11-05), at `/sse` beside the endpoint. `rest` also serves
    `POST /tools/{name}` and `GET /openapi.json` there, for callers that do not speak the protocol; `metrics` serves
    `GET /metrics` for Prometheus. `stateless` opens no sessions: clients that need one are told so.

    `page` is for a person who opens the address in a browser: what this is, how to connect clients, the tools as a
    client without a token sees them. If it is left out, there is a page unless `auth` is set or the browser asks for
    another name than those of this machine. True shows it in these cases too, False never.

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
    parser: str
    legacy_sse: bool
    rest: bool
    metrics: bool
    page: bool | None
    stateless: bool
