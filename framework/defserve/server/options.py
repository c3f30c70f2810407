"""The keyword options of `Server` and its decorators, for type checkers and for errors about misspelt ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from defserve.errors import UsageError, did_you_mean
from defserve.protocols.mgp.options import SecurityFields

if TYPE_CHECKING:
    from defserve.protocols.mcp.identity import Icon
    from defserve.protocols.mcp.transforms.transform import Transform
    from defserve.protocols.mgp.security.security import Security
    from defserve.proxying.restarts import RestartPolicy


class ItemFields(TypedDict, total=False):
    """See `protocols.mcp.items.ItemOptions`."""

    name: str
    title: str
    description: str
    icons: Sequence[Icon | str | Mapping[str, Any]]
    meta: Mapping[str, Any]
    timeout: float
    inline: bool
    scopes: Sequence[str]


class ToolFields(ItemFields, total=False):
    """See `protocols.mcp.tools.ToolOptions`."""

    annotations: Mapping[str, Any]
    structured: bool | Literal["bare"]
    schema: Mapping[str, Any]
    tags: Sequence[str]
    keywords: Sequence[str]
    security: Security
    task: Literal["optional", "required"]
    ttl: float
    poll: float
    retry: int
    begin: Literal["now", "later"]
    app: Callable[..., Any] | str
    visible_to: Literal["model", "app"]


class ResourceFields(ItemFields, total=False):
    """See `protocols.mcp.resources.ResourceOptions`."""

    mime_type: str
    size: int
    annotations: Mapping[str, Any]
    ttl: float
    listed: bool


class CspFields(TypedDict, total=False):
    """The origins that a view may reach. Without any, it has its own inline scripts and styles, and no network."""

    connect: Sequence[str]
    """For `fetch`, XHR and WebSockets."""
    resource: Sequence[str]
    """For scripts, styles, images, fonts and media."""
    frame: Sequence[str]
    """For frames inside the view."""
    base_uri: Sequence[str]
    """For `<base>`."""


class AppFields(ItemFields, total=False):
    """See `protocols.mcp.apps.view.AppOptions`."""

    csp: CspFields
    permissions: Sequence[Literal["camera", "microphone", "geolocation", "clipboard_write"]]
    border: bool
    domain: str
    bridge: bool
    listed: bool
    ttl: float


class PromptFields(ItemFields, total=False):
    """See `protocols.mcp.prompts.PromptOptions`."""


class FeatureSetFields(TypedDict, total=False):
    """See `protocols.mcpl.feature_sets.FeatureSet`."""

    scoped: bool
    uses: Sequence[str]
    model_info: bool
    inbox: bool
    claude_channel: bool
    tag_ontology: Mapping[str, Any]


class MountFields(TypedDict, total=False):
    """See `proxying.mounted.BackendOptions`."""

    id: str
    tools: Sequence[str] | Mapping[str, Any]
    timeout: float
    in_flight: int
    children: int
    idle: float
    restarts: RestartPolicy
    transform: Transform


class ServerFields(SecurityFields, total=False):
    """What a server says about itself; see `protocols.mcp.identity.Identity`."""

    title: str
    instructions: str
    description: str
    website_url: str
    icons: Sequence[Icon | str | Mapping[str, Any]]


def refuse_unknown(
    given: Collection[str],
    known: Collection[str],
    subject: str,
    where: str,
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raises UsageError for the first option that does not exist. `elsewhere`: options of others → what to write."""
    for name in given:
        if name not in known:
            longer = [each for each in known if each.startswith(name)]  # `desc`
            fix = did_you_mean(
                longer[0] if len(longer) == 1 else name, known, f"use some of {', '.join(sorted(known))}"
            )
            # Python's own error, which led here, says less.
            raise UsageError(f"{subject} has no option {name!r}", where=where, fix=elsewhere.get(name, fix)) from None


def refuse_unknown_fields(
    given: Mapping[str, Any], fields: type[Any], function: Callable[..., Any], subject: str, where: str
) -> None:
    """Raises UsageError for an option that neither `fields`, a typed dictionary, nor the function itself has."""
    from defserve.server.elsewhere import OPTIONS

    known = [*fields.__annotations__, *(function.__kwdefaults__ or ())]
    refuse_unknown(given, known, subject, where, OPTIONS)


def check_server_options(shared: str | None, feature_sets: str, where: str) -> None:
    """Raises UsageError for values of these options of `Server` that are not possible."""
    if shared is not None and not shared.startswith(("redis:", "rediss:", "redis+unix:", "redis+sentinel:")):
        raise UsageError(
            f"Server(shared={shared!r}) is not the address of a Redis",
            where=where,
            fix="use 'redis://localhost:6379/0' or 'redis+sentinel://host:26379,host:26379/service/0'",
        )
    if feature_sets not in ("open", "strict"):
        raise UsageError(
            f"Server(feature_sets={feature_sets!r}) is not possible",
            where=where,
            fix='say "open" (a set is on until the host says otherwise) or "strict" (it is off until then)',
        )
