"""The Tools and Apps panels: tools with what they cost and need, calls, calls saved as code, and the views of calls.

A call ends when its verb is cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from defserve.client.apps import RenderedApp, get_view_uri, is_tool_visible_to, render_app
from defserve.client.client import Client
from defserve.client.mgp.server_claims import ListedToolClaims, parse_tool_security
from defserve.client.replies import list_if_supported, object_or_empty, string_or_none
from defserve.core.json_values import is_array, is_object
from defserve.errors import PeerError, PeerGone
from defserve.inspector.app_views import (
    ShownApp,
    ViewDocument,
    ViewHostClient,
    make_refused_origin_check,
    narrow_content_policy,
)
from defserve.inspector.call_code import SavedCall, format_call_command, format_call_test
from defserve.inspector.era_connection import get_client_era
from defserve.inspector.inspection import (
    FirstListing,
    Inspection,
    PageRequestHandler,
    get_request_era,
    use_era_client,
)
from defserve.inspector.kept_calls import KeptCall
from defserve.inspector.protocol import PAGE_LEFT_REASON, BadMessage, Json, PageRequest
from defserve.protocols.mcp.app_policy import UI_URI_SCHEME
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS, STATELESS_VERSIONS
from defserve.tooling.listing import (
    ServerListing,
    estimate_definition_tokens,
    fetch_listing,
    parse_snapshot,
    to_snapshot,
)
from defserve.tooling.server_diff import compare_servers
from defserve.tooling.vendor_shapes import VENDOR_SHAPES, estimate_json_tokens, shape_tool, shape_tools

LOOKED_AT: Final = 20_000
MAX_PAST_CALLS: Final = 120


async def list_tools(inspection: Inspection, request: PageRequest) -> Any:
    """Every tool, as `describe_tool` says. What has no name cannot be called, and is left out: `odd` counts those."""
    async with use_era_client(inspection, request) as client:
        found = await client.tools() if "tools" in client.capabilities else []
    named = [tool for tool in found if is_object(tool) and isinstance(tool.get("name"), str)]
    tools = [describe_tool(tool, client) for tool in named]
    # Clients may search its tools, and need not read them all.
    is_searched = client.mgp is not None and "tool_discovery" in client.mgp.extensions
    return {"tools": tools, "odd": len(found) - len(named), "searched": is_searched}


def describe_tool(tool: Json, client: Client) -> Json:
    """A tool for the page: its `definition` as it came, and what is read of it, of the right type whatever came."""
    security = parse_tool_security(str(tool["name"]), tool)
    held = client.mgp.grants if client.mgp is not None else {}
    needs = security.permissions or []
    return {
        "name": tool["name"],
        "title": string_or_none(tool.get("title")) or "",
        "about": string_or_none(tool.get("description")) or "",
        "schema": object_or_empty(tool.get("inputSchema")),
        "output": object_or_empty(tool.get("outputSchema")) or None,
        "hints": object_or_empty(tool.get("annotations")),
        "definition": tool,
        "tokens": estimate_definition_tokens(tool),
        "mark": security.risk if security.security else None,
        "needs": [{"name": name, "decision": held.get(name, "deferred")} for name in needs],
        "guard": guard if (guard := security.validator) != "none" else None,
        "confirms": _confirms(security),
        "set": string_or_none(object_or_empty(tool.get("_meta")).get("featureSet")),
    }


def _confirms(security: ListedToolClaims) -> bool:
    """Whether the person is asked before it is called."""
    if security.risk == "dangerous":
        return security.confirmation_required is not False or not security.permissions
    return security.confirmation_required is True


async def call_tool(inspection: Inspection, request: PageRequest) -> Any:
    """Call a tool. The first part has the `call`; then it is followed. Cancelling it cancels the call.

    A page that leaves does not: the call goes on, and `tools.follow` finds it again.
    """
    call = inspection.calls.start(get_request_era(request), request.get_text("tool"), request.get_object("arguments"))
    request.part({"call": call.to_wire()})
    try:
        return await _follow(call, request)
    except asyncio.CancelledError as stop:
        if PAGE_LEFT_REASON not in stop.args:
            call.cancel()
        raise


async def list_calls(inspection: Inspection, request: PageRequest) -> Any:
    """The calls that are kept, the newest first, without their parts."""
    return {"calls": inspection.calls.to_wire(), "now": time.time()}


async def follow_call(inspection: Inspection, request: PageRequest) -> Any:
    """A call that is kept, from its beginning: its parts, then its outcome."""
    return await _follow(inspection.calls[request.get_integer("call")], request)


async def cancel_call(inspection: Inspection, request: PageRequest) -> Any:
    inspection.calls[request.get_integer("call")].cancel()


async def _follow(call: KeptCall, request: PageRequest) -> Json:
    await call.follow(request.part)
    if call.failure is not None:
        if "waterfall" in call.outcome:
            request.part({"waterfall": call.outcome["waterfall"]})
        raise call.failure
    return {"state": call.state, **call.outcome}


async def save_call(inspection: Inspection, request: PageRequest) -> Any:
    """A call as code: the `command` that repeats it, and a `test` for pytest that expects its result."""
    tool, arguments = request.get_text("tool"), request.get_object("arguments")
    words = inspection.target.words
    return {
        "command": format_call_command(words, tool, arguments),
        "test": format_call_test(words, [SavedCall(tool, arguments, request.arguments.get("result"))]),
    }


async def describe_latency(inspection: Inspection, request: PageRequest) -> Any:
    """How long the newest calls of a tool took, oldest first."""
    tool, recorder = request.get_text("tool"), inspection.recorder
    found = [
        {"ms": entry.ms, "era": entry.era, "error": entry.error is not None}
        for entry in recorder.get_messages(max(recorder.first, recorder.count - LOOKED_AT), recorder.count)
        if entry.kind == "request" and entry.method == "tools/call" and entry.about == tool and entry.ms is not None
    ]
    return {"calls": found[-MAX_PAST_CALLS:]}


# -- The Apps panel: tools that have a view, the view of a call in a frame, and its messages.


MAX_VIEW_BYTES: Final = 8 * 1024 * 1024
MAX_TEXT_LENGTH: Final = 2_000
AUDIENCES: Final = ("model", "app")


async def list_apps(inspection: Inspection, request: PageRequest) -> Any:
    """`tools` that have a view or are for views, and the `views` that are listed as resources."""
    async with use_era_client(inspection, request) as client:
        listed = await client.tools() if "tools" in client.capabilities else []
        found = [_tool(each) for each in listed if isinstance(each.get("name"), str)]
        return {"tools": [each for each in found if each is not None], "views": await _views(client)}


def _tool(tool: Json) -> Json | None:
    uri, audience = get_view_uri(tool), [each for each in AUDIENCES if is_tool_visible_to(each, tool)]
    if uri is None and "model" in audience:
        return None
    about = {name: _text(tool, name) for name in ("name", "title", "description")}
    return {**about, "uri": uri, "audience": audience, "schema": object_or_empty(tool.get("inputSchema"))}


async def _views(client: Client) -> list[Json]:
    try:
        offered = "resources" in client.capabilities
        listed = (await list_if_supported("resources/list", client.resources())).items if offered else []
    except PeerGone:
        raise
    except PeerError:
        return []  # the tools tell which views there are
    views = [each for each in listed if (string_or_none(each.get("uri")) or "").startswith(UI_URI_SCHEME)]
    return [{name: _text(each, name) for name in ("uri", "name", "title", "description", "mimeType")} for each in views]


def _text(item: Json, name: str) -> str:
    return (string_or_none(item.get(name)) or "")[:MAX_TEXT_LENGTH]


async def show_app(inspection: Inspection, request: PageRequest) -> Any:
    """Call a tool as a model would, and get its view ready for a frame. Parts: the progress of the call."""
    tool, arguments = request.get_text("tool"), request.get_object("arguments")
    began = time.perf_counter()

    def progress(progress: float, total: float | None, message: str | None) -> None:
        request.part({"progress": progress, "total": total, "message": message})

    async with use_era_client(inspection, request) as client:
        app = await render_app(ViewHostClient(client, progress), tool, arguments)
    era = get_client_era(client)
    document = _prepare_document(inspection, app)
    shown = ShownApp(era, app, inspection.questions)
    shown.update_context(request.get_object("context"))
    return {
        **document,
        "app": inspection.apps.add(shown),
        "era": era,
        "ms": round((time.perf_counter() - began) * 1000, 1),
        "uri": app.uri,
        "result": app.result,
        "text": app.text,
    }


async def reload_view(inspection: Inspection, request: PageRequest) -> Any:
    """The server tells of a change: fetch a shown view again. Nothing is said if it is the same.

    Its tool is not called again. The new document begins with the same result and the state that the view has saved.
    """
    shown = inspection.apps[request.get_integer("app")]
    async with use_era_client(inspection, request) as client:
        if not await shown.app.reload(ViewHostClient(client)):
            return {}
    shown.has_begun = False
    return _prepare_document(inspection, shown.app)


def _prepare_document(inspection: Inspection, app: RenderedApp) -> Json:
    """Where the document of a view is, and what it may reach. Raises PeerError for one that is too large."""
    size = len(app.html.encode("utf-8", "replace"))
    if size > MAX_VIEW_BYTES:
        raise PeerError(f"the view {app.uri!r} has {size:,} bytes: more than {MAX_VIEW_BYTES:,} are not shown")
    views = inspection.views
    ports = {views.page_port, urlsplit(views.origin).port or 0}
    policy, reaches, refused = narrow_content_policy(
        app.policy, make_refused_origin_check(ports, inspection.target.address)
    )
    return {
        "url": views.add(ViewDocument(app.html, policy)),
        "size": size,
        "policy": policy,
        "reaches": reaches,
        "refused": refused,
        "permissions": app.permissions,
        "border": app.border,
        "domain": app.domain,
    }


async def prepare_view_message(inspection: Inspection, request: PageRequest) -> Any:
    """What to post to a view after a `message` of its own. Cancelling it takes back what the person was asked."""
    given = request.arguments.get("message")
    if not isinstance(given, dict):
        raise BadMessage("the argument 'message' is missing, or is not an object")
    return {"answers": await inspection.apps[request.get_integer("app")].handle_view_message(given)}


async def context(inspection: Inspection, request: PageRequest) -> Any:
    """Something is different at the page: its theme, the room for the view. What to post to the view."""
    return {"answers": inspection.apps[request.get_integer("app")].update_context(request.get_object("context"))}


async def close(inspection: Inspection, request: PageRequest) -> Any:
    inspection.apps.remove(request.get_integer("app"))
    return {}


# -- Definitions: what a server lists now beside what it listed before (Compare), and tools as models see them.


MAX_NAME_LENGTH: Final = 80
FEATURE_SET: Final = "featureSet"


async def keep_first_listing(inspection: Inspection, request: PageRequest) -> Any:
    """Remember what the server lists, unless that was done. `since` is when it was."""
    return {"since": (await _first_listing(inspection, request)).at}


async def compare_listings(inspection: Inspection, request: PageRequest) -> Any:
    """What changed since `text`, the content of a file called `name`; without one, since the first listing."""
    if "text" in request.arguments:
        name = request.get_text("name", "the file")[:MAX_NAME_LENGTH]
        before = parse_snapshot(request.get_text("text").encode("utf-8", "replace"), name)
        before, after = map(_drop_feature_sets, (before, await _list_in_era_of(before, inspection, request)))
    else:
        before = (await _first_listing(inspection, request)).listed
        after = await _list_now(inspection, request)
    # Two long lists take a while; other requests of the page go on.
    return (await asyncio.to_thread(compare_servers, before, after)).to_wire()


async def save_listing(inspection: Inspection, request: PageRequest) -> Any:
    """What the server lists now, to be kept as a file."""
    return {"snapshot": to_snapshot(await _list_now(inspection, request))}


async def shape_definitions(inspection: Inspection, request: PageRequest) -> Any:
    """The `tools` of the page's own list as each vendor is sent them: the values, their cost, and what is lost."""
    given = request.arguments.get("tools")
    if not is_array(given) or not all(is_object(tool) and isinstance(tool.get("name"), str) for tool in given):
        raise BadMessage("the argument 'tools' is missing, or is not a list of tools")
    return await asyncio.to_thread(_shape_all, list(given))


def _shape_all(tools: list[Json]) -> list[Json]:
    shaped: list[Json] = []
    for vendor, shape in VENDOR_SHAPES.items():
        each = [shape_tool(vendor, tool) for tool in tools]
        value = shape_tools(vendor, tools)
        shaped.append(
            {
                "vendor": vendor,
                "title": shape.title,
                "value": value,
                "tokens": estimate_json_tokens(value),
                "lost": list(dict.fromkeys(member for one in each for member in one.lost)),
                "problems": [
                    f"{tool['name']}: {problem}"
                    for tool, one in zip(tools, each, strict=True)
                    for problem in one.problems
                ],
            }
        )
    return shaped


async def _first_listing(inspection: Inspection, request: PageRequest) -> FirstListing:
    async with use_era_client(inspection, request):
        # Which era the first conversation speaks is known when it is open.
        era = inspection.connection(get_request_era(request)).era
    if era not in inspection.first_listings:
        listed = await _list_now(inspection, request)
        inspection.first_listings.setdefault(era, FirstListing(listed, time.time()))
    return inspection.first_listings[era]


async def _list_in_era_of(before: ServerListing, inspection: Inspection, request: PageRequest) -> ServerListing:
    """What the server lists in the era of another listing, because capabilities have other names in each."""
    version = before.initialize.get("protocolVersion")
    era = "stateless" if version in STATELESS_VERSIONS else "handshake" if version in HANDSHAKE_VERSIONS else ""
    try:
        return await _list_now(inspection, PageRequest({**request.arguments, "era": era}, request.part))
    except PeerError:
        return await _list_now(inspection, request)


def _drop_feature_sets(listed: ServerListing) -> ServerListing:
    """A listing without what only a host of MCPL is told, as the inspector is and `defserve inspect` is not."""

    def plain(tool: Json) -> Json:
        meta = {name: value for name, value in object_or_empty(tool.get("_meta")).items() if name != FEATURE_SET}
        return {**{name: value for name, value in tool.items() if name != "_meta"}, **({"_meta": meta} if meta else {})}

    return listed._replace(tools=list(map(plain, listed.tools)))


async def _list_now(inspection: Inspection, request: PageRequest) -> ServerListing:
    async with use_era_client(inspection, request) as client:
        return await fetch_listing(client)


PAGE_HANDLERS: Final[Mapping[str, PageRequestHandler]] = {
    "tools.list": list_tools,
    "tools.call": call_tool,
    "tools.calls": list_calls,
    "tools.follow": follow_call,
    "tools.cancel": cancel_call,
    "tools.save": save_call,
    "tools.latency": describe_latency,
    "apps.list": list_apps,
    "apps.show": show_app,
    "apps.reload": reload_view,
    "apps.message": prepare_view_message,
    "apps.context": context,
    "apps.close": close,
    "compare.keep": keep_first_listing,
    "compare.run": compare_listings,
    "compare.save": save_listing,
    "tools.shapes": shape_definitions,
}
