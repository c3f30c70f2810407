"""How an API is imported: one frozen object, which `Server.from_openapi` and `from_fastapi` make of their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from defserve.openapi.requests.auth import Credentials
    from defserve.openapi.selection import Pattern
    from defserve.protocols.mcp.transforms.transform import Transform

MANY = 30
"""Above so many tools, a server made of a document is searched."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Which operations of an API are served, and how they are called.

    base_url     where the API is; by default the first server of the document. Only an address that is given here may
                 be on a private network
    variables    values for the variables in the address of the document's server
    auth         who calls the API: `Bearer`, `Basic`, `ApiKey`, or `PerCaller`
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
    include: Sequence[Pattern] | Pattern | None = None
    exclude: Sequence[Pattern] | Pattern = ()
    marks: Mapping[Pattern, Any] = field(default_factory=dict[Any, Any])
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
    include: Sequence[Pattern] | Pattern
    exclude: Sequence[Pattern] | Pattern
    marks: Mapping[Pattern, Any]
    slashes: Sequence[str]
    timeout: float
    retries: int
    remote_refs: bool
    transform: Transform
    client: Any
