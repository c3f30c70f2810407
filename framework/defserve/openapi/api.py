"""An imported API: how it is imported, its address, its tools, and what they share."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypedDict
from urllib.parse import urljoin, urlsplit

from defserve.base.redaction import get_logger
from defserve.core.json_values import is_array, is_object
from defserve.errors import UsageError
from defserve.guard.network import judge
from defserve.openapi.documents import DocumentReferences, OpenApiDocument, bundle_document, load_document
from defserve.openapi.operations import (
    PATH_VARIABLE_PATTERN,
    Operation,
    choose_operation_security,
    is_operation_included,
    join_name_words,
    list_operations,
    make_method_hints,
    name_operations,
    parse_operation_patterns,
    split_name_words,
)
from defserve.openapi.schema_dialect import MAX_TOOL_DESCRIPTION_LENGTH, clean_and_cut_text, make_tool_description
from defserve.openapi.schemas import SchemaConverter
from defserve.openapi.sending import (
    ApiSender,
    CallerToken,
    InProcessApp,
    check_credentials,
    iter_parameters_set_by_headers,
)
from defserve.openapi.tool import OperationTool
from defserve.protocols.mcp.tools import Tool, ToolOptions
from defserve.protocols.mcp.transforms import Transform

if TYPE_CHECKING:
    from defserve.openapi.operations import OperationPattern
    from defserve.openapi.sending import Credentials


log = get_logger("openapi")
MAX_TAGS = 5


class ImportedApi:
    """An API that is served as tools. `skipped` says which operations are left out although they were chosen."""

    def __init__(self, source: Any, options: ImportOptions) -> None:
        document = load_document(source)
        content = bundle_document(document) if options.remote_refs else document.content
        info = content.get("info")
        self._info: dict[str, Any] = info if is_object(info) else {}
        self.references = DocumentReferences(content)
        self.schemas = SchemaConverter(self.references)
        self.auth = check_credentials(options.auth)
        self.headers = dict(options.headers)
        self.pinned = frozenset(iter_parameters_set_by_headers(self.headers))
        self.slashes = frozenset(options.slashes)
        self.skipped: list[str] = []
        self.on_changed: Callable[[], None] = lambda: None
        """Called when a tool is listed differently from now on."""
        client = options.client
        if client is None and find_spec("httpx2") is None:
            raise UsageError(
                "tools of an API need httpx2, which is not installed", fix='pip install "defserve[client]"'
            )
        if client is not None and not hasattr(client, "stream"):
            client = InProcessApp(client)
        self._app = client if isinstance(client, InProcessApp) else None
        base = base_url_of(document, options.base_url, options.variables)
        is_trusted = options.base_url is not None
        if not is_trusted and client is None:
            refuse_private(base)
            if isinstance(self.auth, CallerToken):
                raise UsageError(
                    "CallerToken would send tokens of callers to an address that the document chooses",
                    fix=f"if you trust it, write it yourself: base_url={json.dumps(base)}",
                )
        self.sender = ApiSender(base, options.timeout, options.retries, client, is_trusted=is_trusted)
        self.tools: list[Tool] = [*self._tools(document, base, options)]
        if (transform := options.transform) is not None:
            transform.check(tool.name for tool in self.tools)
            self.tools = [made for tool in self.tools if (made := transform.transform_tool(tool)) is not None]

    @property
    def name(self) -> str:
        """The API's title as a name for a server."""
        return join_name_words(split_name_words(str(self._info.get("title", "")))) or "api"

    @property
    def server_options(self) -> dict[str, str]:
        """What the document says of the API, as options of a server."""
        said = {name: self._info.get(name) for name in ("title", "version", "description")}
        return {
            name: clean_and_cut_text(text, MAX_TOOL_DESCRIPTION_LENGTH)
            for name, text in said.items()
            if isinstance(text, str) and text.strip()
        }

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Enter the lifespan of an app in this process; close connections at the end."""
        from contextlib import AsyncExitStack

        async with AsyncExitStack() as stack:
            if self._app is not None:
                await stack.enter_async_context(self._app.serving())
            await stack.enter_async_context(self.sender.serving())
            yield

    def _tools(self, document: OpenApiDocument, base: str, options: ImportOptions) -> list[OperationTool]:
        include = None if options.include is None else parse_operation_patterns(options.include, "include")
        exclude = parse_operation_patterns(options.exclude, "exclude")
        found = list(list_operations(self.references))
        made: list[OperationTool] = []
        for operation, name in zip(found, name_operations(found), strict=True):
            if not is_operation_included(operation, name, include, exclude):
                continue
            at = base if not operation.servers or options.base_url is not None else None
            at = at or own_base(operation.servers, base, options.variables, document.url)
            if at is None:
                self.skipped.append(f"{operation} is left out: it is at another origin than {base}")
                continue
            made.append(self._tool(operation, name, at, options))
        for problem in self.skipped:
            log.warning("%s", problem)
        if not made:
            raise UsageError(
                f"{document.shown}: none of its {len(found)} operations is served",
                fix="check include= and exclude=" if found else "check that it has paths",
            )
        return made

    def _tool(self, operation: Operation, name: str, base: str, options: ImportOptions) -> OperationTool:
        about = ToolOptions(
            name=name,
            description=make_tool_description(
                name, operation.summary, operation.description, deprecated=operation.deprecated, fallback=str(operation)
            ),
            annotations=make_method_hints(operation),
            security=choose_operation_security(operation, name, options.marks),
            tags=tuple(filter(None, map(_tag, operation.tags[:MAX_TAGS]))),
        )
        return OperationTool(name, about, operation, self, base)


def _tag(tag: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", tag.strip().lower()).strip("-.")[:64]


# -- How an API is imported: one frozen object, which `Server.from_openapi` and `from_fastapi` make of their options.


MAX_UNSEARCHED_TOOLS = 30
"""Above so many tools, a server made of a document is searched."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Which operations of an API are served, and how they are called.

    base_url     where the API is; by default the first server of the document. Only an address that is given here may
                 be on a private network
    variables    values for the variables in the address of the document's server
    auth         who calls the API: `Bearer`, `Basic`, `ApiKey`, `PerCaller` or `CallerToken`
    headers      sent with every request. A parameter of the same name is no argument
    include      the operations to serve, by patterns: `tag:users`, `/users/*`, `GET`, `GET /users/*`, `list_*`
    exclude      those not to serve
    marks        what a tool may do, by patterns: `{"POST /search": "safe"}`. By default GET is safe, DELETE dangerous
    slashes      path parameters that may hold a slash
    timeout      seconds for one request
    retries      how often a request that changes nothing twice is repeated
    remote_refs  whether `$ref` may lead to other files in the folder, or at the origin, of the document
    transform    how the tools are changed: renamed, described anew, with arguments fixed
    client       an httpx client, or an ASGI app, that is called instead of the network
    """

    base_url: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    auth: Credentials | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    include: Sequence[OperationPattern] | OperationPattern | None = None
    exclude: Sequence[OperationPattern] | OperationPattern = ()
    marks: Mapping[OperationPattern, Any] = field(default_factory=dict[Any, Any])
    slashes: Sequence[str] = ()
    timeout: float = 30.0
    retries: int = 2
    remote_refs: bool = False
    transform: Transform | None = None
    client: Any = None


class ImportFields(TypedDict, total=False):
    """See `ImportOptions`."""

    base_url: str
    variables: Mapping[str, str]
    auth: Credentials
    headers: Mapping[str, str]
    include: Sequence[OperationPattern] | OperationPattern
    exclude: Sequence[OperationPattern] | OperationPattern
    marks: Mapping[OperationPattern, Any]
    slashes: Sequence[str]
    timeout: float
    retries: int
    remote_refs: bool
    transform: Transform
    client: Any


# -- The address of the API: written by the author, or taken from the document's servers. Requests never leave it.


PRIVATE: Final = frozenset(("private-address", "private-name"))
FIX = 'say base_url="https://api.example.com/v1"'


def base_url_of(document: OpenApiDocument, given: str | None, variables: Mapping[str, str]) -> str:
    """The address that every path is added to, without a slash at its end. Raises UsageError if there is none."""
    if given is not None:
        return _check_url(given)
    servers = document.content.get("servers")
    first: Any = servers[0] if is_array(servers) and servers else {"url": "/"}
    return _check_url(server_url(first, variables, document.url))


def server_url(server: Any, variables: Mapping[str, str], home: str | None) -> str:
    """The address of one server of a document. `home` is where the document came from."""
    if not is_object(server) or not isinstance(url := server.get("url"), str):
        raise UsageError("a server of the document has no url", fix=FIX)
    known = server.get("variables")
    filled = PATH_VARIABLE_PATTERN.sub(lambda found: _variable(found[1], known, variables), url)
    if not re.match(r"https?://", filled):
        if home is None:
            raise UsageError(f"the document's server {filled[:100]!r} is not a whole address", fix=FIX)
        try:
            filled = urljoin(home, filled)
        except ValueError:
            raise UsageError(f"the document's server {filled[:100]!r} is not an address", fix=FIX) from None
    return filled


def refuse_private(base: str) -> None:
    """Raises UsageError for the address of a document that is on a private network, as far as its text shows.

    A document is a stranger's. If it could choose, a model's calls would reach what only this machine can.
    """
    verdict = judge(f"{base}/", ports=None)
    if PRIVATE.isdisjoint(violation.rule for violation in verdict.violations):
        return
    raise UsageError(
        f"the document's server is on a private network: {urlsplit(base).hostname}",
        fix=f"if you trust it, write it yourself: base_url={json.dumps(base)}",
    )


def _variable(name: str, known: Any, chosen: Mapping[str, str]) -> str:
    about = known.get(name) if is_object(known) else None
    value = chosen.get(name, about.get("default") if is_object(about) else None)
    if not isinstance(value, str):
        raise UsageError(f"the server's variable {name!r} has no value", fix=f'say variables={{"{name}": "…"}}')
    allowed = about.get("enum") if is_object(about) else None
    if is_array(allowed) and allowed and value not in allowed:
        raise UsageError(
            f"the server's variable {name!r} cannot be {value!r}", fix=f"use one of {', '.join(map(str, allowed))}"
        )
    return value


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_served = parts.port != 0
    except ValueError:  # half an IPv6 address, or a port that is none
        raise UsageError(f"{url[:200]!r} is not the address of an API", fix=FIX) from None
    has_user = "@" in parts.netloc
    is_plain = not (has_user or parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_served or not is_plain:
        raise UsageError(
            f"{parts.scheme}://{parts.hostname or '…'} is not the address of an API"
            if has_user
            else f"{url[:200]!r} is not the address of an API",
            fix=f"{FIX}: no user, query or fragment",
        )
    return url.rstrip("/")


def own_base(servers: Sequence[Any], base: str, variables: Mapping[str, str], home: str | None) -> str | None:
    """The address for an operation with servers of its own; None if they are at another origin than the API."""
    try:
        url = _check_url(server_url(servers[0], variables, home or base + "/"))
    except UsageError:
        return None
    return url if _origin(url) == _origin(base) else None


def _origin(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme]
