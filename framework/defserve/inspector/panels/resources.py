"""The Resources, Prompts and Skills panels: lists, what is filled in, contents, and watching for changes."""

from __future__ import annotations

import base64
import hashlib
import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from defserve.client.client import Client
from defserve.client.replies import Json as JsonObject
from defserve.client.replies import filter_strings, list_if_supported, number_or_none, object_or_empty, string_or_none
from defserve.client.skills import UnverifiedSkill
from defserve.core.json_values import is_array, is_object
from defserve.errors import PeerError, PeerGone
from defserve.inspector.era_connection import get_client_era
from defserve.inspector.inspection import Inspection, PageRequestHandler, use_era_client
from defserve.inspector.protocol import BadMessage, Json, PageRequest
from defserve.protocols.mcp.uri_template import expand_template, parse_template
from defserve.protocols.mcp.versions import get_version_features

MAX_VALUES: Final = 100


async def list_resources(inspection: Inspection, request: PageRequest) -> Any:
    """`resources` and `templates`, templates with their `variables`; what is `watched`, if that can be."""
    async with use_era_client(inspection, request) as client:
        if "resources" not in client.capabilities:
            return {"offered": False, "resources": [], "templates": [], "watches": False, "watched": []}
        offer = object_or_empty(client.capabilities.get("resources"))
        resources, _ = await list_if_supported("resources/list", client.resources())
        found = {"resources": list_named_items(resources, "uri"), "templates": await _templates(client)}
        watches = offer.get("subscribe") is True
        watched = await inspection.watches.renew_watches(client) if watches else []
    return {"offered": True, **found, "watches": watches, "watched": watched, "completes": completes(client)}


async def _templates(client: Client) -> list[Json]:
    try:
        found = await client.templates()
    except PeerGone:
        raise
    except PeerError:
        return []  # servers without templates may not know the method
    return [
        {"definition": each, "variables": list_template_variables(each["uriTemplate"])}
        for each in list_named_items(found, "uriTemplate")
    ]


def completes(client: Client) -> bool:
    """Whether a server suggests values. Those of the first versions do so without saying it."""
    return "completions" in client.capabilities or "completions" not in get_version_features(client.version)


def list_template_variables(template: str) -> list[Json] | None:
    """The variables of a template, `{"name", "many"}` each; None if it is one that is not understood."""
    try:
        parts = parse_template(template)
    except ValueError:
        return None
    found = [each for part in parts if not isinstance(part, str) for each in part.variables]
    return [{"name": each.name, "many": each.explode} for each in found]


async def expand_uri(inspection: Inspection, request: PageRequest) -> Any:
    """The URI of a template with `values`. What is left out, or empty, is left out of the URI."""
    values = {name: value for name, value in request.get_object("values").items() if value not in ("", [], None)}
    try:
        return {"uri": expand_template(parse_template(request.get_text("template")), values)}
    except (TypeError, ValueError) as error:
        raise BadMessage(f"the template cannot be filled in: {error}", fix="type the whole URI") from None


async def read_resource(inspection: Inspection, request: PageRequest) -> Any:
    """The `contents` of a resource."""
    uri = request.get_text("uri")
    async with use_era_client(inspection, request) as client:
        return {"uri": uri, "contents": contents_of(await client.read(uri))}


async def watch_resource(inspection: Inspection, request: PageRequest) -> Any:
    """Watch a resource, or (`on` is false) no longer. What is watched then."""
    uri = request.get_text("uri")
    async with use_era_client(inspection, request) as client:
        if request.arguments.get("on") is False:
            await inspection.watches.unwatch_resource(client, uri)
        else:
            await inspection.watches.watch_resource(client, uri)
        return {"watched": await inspection.watches.renew_watches(client)}


async def complete_argument(inspection: Inspection, request: PageRequest) -> Any:
    """Values that the server suggests for an argument of a prompt or template. `ref` is the reference as MCP has it."""
    context = {name: value for name, value in request.get_object("context").items() if isinstance(value, str)}
    async with use_era_client(inspection, request) as client:
        found = await client.complete(
            request.get_object("ref"),
            argument=request.get_text("argument"),
            value=request.get_text("value", ""),
            context=context,
        )
    return {"values": filter_strings(found.get("values"))[:MAX_VALUES], "more": found.get("hasMore") is True}


# -- The Prompts panel: the list, and a prompt with its arguments as the messages that it gives.


async def list_prompts(inspection: Inspection, request: PageRequest) -> Any:
    """`prompts`, and whether the server `completes` their arguments."""
    async with use_era_client(inspection, request) as client:
        offered = "prompts" in client.capabilities
        prompts = (await list_if_supported("prompts/list", client.prompts())).items if offered else []
        found = list_named_items(prompts, "name")
    return {"offered": offered, "prompts": found, "completes": completes(client)}


async def get_prompt(inspection: Inspection, request: PageRequest) -> Any:
    """The whole result of a prompt. `arguments` are sent as they are, also wrong ones: refusals are worth testing."""
    params = {"name": request.get_text("prompt"), "arguments": request.get_object("arguments")}
    async with use_era_client(inspection, request) as client:
        return await client.request("prompts/get", params)


# -- The Skills panel: skills and their files, read only as far as they are what was listed.


EXTENSION: Final = "io.modelcontextprotocol/skills"
MAX_CHILDREN: Final = 2_000
MAX_TEXT_LENGTH: Final = 2_000


async def list_skills(inspection: Inspection, request: PageRequest) -> Any:
    """Every skill, as `describe_skill` says. Nothing is read. `directories`: folders can be read. `more`: left out."""
    async with use_era_client(inspection, request) as client:
        offer = object_or_empty(client.capabilities.get("extensions")).get(EXTENSION)
        if offer is None:
            return {"offered": False, "directories": False, "skills": [], "more": 0}
        found = await client.skills()
        skills = inspection.skills.store_skills(get_client_era(client), found)
        directories = object_or_empty(offer).get("directoryRead") is True
        return {"offered": True, "directories": directories, "skills": skills, "more": len(found) - len(skills)}


async def read_skill_file(inspection: Inspection, request: PageRequest) -> Any:
    """A file of a skill: its text, or its bytes in base64, with the digest that was found.

    A file that is not what was listed is `refused`, and nothing of it is told. `again` reads `SKILL.md` again.
    """
    uri, path = request.get_text("uri"), request.get_text("path")
    async with use_era_client(inspection, request) as client:
        era = get_client_era(client)
        if request.arguments.get("again") is True:
            inspection.skills.forget_skill_text(era, uri)
        try:
            data = await (await inspection.skills.load_skill(client, era, uri)).read(path)
        except UnverifiedSkill as error:
            return {"path": path, "refused": error.message[:MAX_TEXT_LENGTH]}
    about: JsonObject = {"path": path, "size": len(data), "digest": f"sha256:{hashlib.sha256(data).hexdigest()}"}
    kind = mimetypes.guess_type(path)[0] or ""
    text = None if kind.startswith("image/") else _text(data)
    content: JsonObject = {"blob": base64.b64encode(data).decode()} if text is None else {"text": text}
    return {**about, "type": kind, **content}


async def list_skill_folder(inspection: Inspection, request: PageRequest) -> Any:
    """What the server says is in a folder. It is not verified: `uri` tells which of it the skill lists."""
    async with use_era_client(inspection, request) as client:
        found = await client.directory(request.get_text("uri"))
    named = [each for each in found if isinstance(each.get("uri"), str)]
    return {"children": [_child(each) for each in named[:MAX_CHILDREN]], "more": len(named[MAX_CHILDREN:])}


def _child(each: JsonObject) -> JsonObject:
    uri, kind = str(each["uri"])[:MAX_TEXT_LENGTH], string_or_none(each.get("mimeType")) or ""
    name = uri.rstrip("/").rpartition("/")[2]
    return {"uri": uri, "name": name, "type": kind[:200], "folder": kind == "inode/directory"}


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


# -- What a server lists or gives, read for the page: members of the right type, whatever came.


TEXTS: Final = ("uri", "uriTemplate", "name", "title", "description", "mimeType")
CONTENT: Final = ("uri", "mimeType", "text", "blob")


def list_named_items(items: Iterable[Any], key: str) -> list[JsonObject]:
    """The items whose `key` is a text, once each, with their texts and what else the page shows."""
    found: dict[str, JsonObject] = {}
    for item in items:
        if is_object(item) and isinstance(name := item.get(key), str) and name not in found:
            found[name] = _item(item)
    return list(found.values())


def contents_of(contents: Any) -> list[JsonObject]:
    """The contents of a resource: texts and base64."""
    return [_texts(each, CONTENT) for each in contents if is_object(each)] if is_array(contents) else []


def _item(item: JsonObject) -> JsonObject:
    told = _texts(item, TEXTS)
    if (size := number_or_none(item.get("size"))) is not None:
        told["size"] = size
    notes = object_or_empty(item.get("annotations"))
    told["annotations"] = {
        "audience": filter_strings(notes.get("audience")),
        "priority": number_or_none(notes.get("priority")),
        "lastModified": string_or_none(notes.get("lastModified")),
    }
    if is_array(asked := item.get("arguments")):
        told["arguments"] = list_named_items(asked, "name")
    if isinstance(required := item.get("required"), bool):
        told["required"] = required
    return told


def _texts(item: JsonObject, names: Sequence[str]) -> JsonObject:
    return {name: text for name in names if (text := string_or_none(item.get(name))) is not None}


PAGE_HANDLERS: Final[Mapping[str, PageRequestHandler]] = {
    "resources.list": list_resources,
    "resources.expand": expand_uri,
    "resources.read": read_resource,
    "resources.watch": watch_resource,
    "complete": complete_argument,
    "prompts.list": list_prompts,
    "prompts.get": get_prompt,
    "skills.list": list_skills,
    "skills.read": read_skill_file,
    "skills.directory": list_skill_folder,
}
