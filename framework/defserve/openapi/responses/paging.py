"""The next page: found in the `Link` header or in the body, and said as the arguments of the next call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from defserve.openapi.requests.plan import RequestPlan
from defserve.openapi.requests.sending import ApiResponse
from defserve.wire.jsonvalue import as_list, is_array, is_object

LONGEST: Final = 2_000
_LINK: Final = re.compile(r"<([^<>]{1,4000})>([^<]{0,500})")
_NEXT: Final = re.compile(r"rel\s*=\s*\"?[^\";,]{0,60}\bnext\b", re.IGNORECASE)
_INSIDE: Final = ("meta", "metadata", "response_metadata", "pagination", "paging", "page_info", "pageInfo", "cursors")
_ADDRESSES: Final = ("next", "next_url", "next_page_url", "nextLink", "@odata.nextLink", "next_page")
_CURSORS: Final = ("nextcursor", "nextpagetoken", "nexttoken", "endcursor", "continuationtoken", "nextpage", "after")
_TAKES: Final = (
    "cursor", "pagetoken", "nexttoken", "continuationtoken", "continuation", "after", "startcursor", "page", "marker",
)  # fmt: skip


def next_page(plan: RequestPlan, arguments: dict[str, Any], response: ApiResponse, body: Any) -> dict[str, Any] | None:
    """The arguments that change for the next page; None if there is none, or if it cannot be told."""
    for url in (*_linked(response.headers.get("link", "")), *_addresses(body)):
        if found := _of_address(plan, arguments, url):
            return found
    return _of_cursor(plan, arguments, body)


def _linked(header: str) -> Iterator[str]:
    for url, about in _LINK.findall(header[:16_000]):
        if _NEXT.search(about):
            yield url


def _addresses(body: Any) -> Iterator[str]:
    for place in _places(body, (*_INSIDE, "links", "_links")):
        for name in _ADDRESSES:
            url = place.get(name)
            url = url.get("href") if is_object(url) else url
            if isinstance(url, str) and ("?" in url or "/" in url):
                yield url


def _places(body: Any, inside: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The object itself, and those in which APIs put what concerns pages."""
    pending: list[Any] = [body]
    while pending:
        here = pending.pop(0)
        if is_object(here):
            yield here
            pending += [here[name] for name in inside if name in here]


def _of_address(plan: RequestPlan, arguments: dict[str, Any], url: str) -> dict[str, Any]:
    """What the query of an address says for arguments of this tool. The address itself is never followed."""
    try:
        given = dict(parse_qsl(urlsplit(url).query, max_num_fields=200))
    except ValueError:
        return {}
    changed: dict[str, Any] = {}
    for argument in plan.parameters:
        if argument.parameter.place == "query" and (text := given.get(argument.parameter.name)) is not None:
            value = _typed(text, plan.properties[argument.name])
            if value is not None and arguments.get(argument.name) != value and len(text) <= LONGEST:
                changed[argument.name] = value
    return changed


def _typed(text: str, schema: Any) -> Any:
    kinds = as_list(schema.get("type", "string"))
    if "string" in kinds or "type" not in schema:
        return text
    if "integer" in kinds or "number" in kinds:
        return int(text) if re.fullmatch(r"-?[0-9]{1,15}", text) else None
    return None  # a list or an object stays as it is


def _of_cursor(plan: RequestPlan, arguments: dict[str, Any], body: Any) -> dict[str, Any] | None:
    takes = {_plain(a.parameter.name): a.name for a in plan.parameters if a.parameter.place == "query"}
    for place in _places(body, _INSIDE):
        for name, value in place.items():
            plain = _plain(name)
            if plain not in _CURSORS or isinstance(value, bool) or not isinstance(value, str | int) or value == "":
                continue
            own = (plain, plain.removeprefix("next"))
            argument = next((takes[key] for key in (*own, *_TAKES) if key in takes), None)
            if argument is not None and len(str(value)) <= LONGEST and arguments.get(argument) != value:
                typed = _typed(str(value), plan.properties[argument])
                return {argument: typed} if typed is not None else None
    return _after_the_last(takes, body)


def _after_the_last(takes: dict[str, str], body: Any) -> dict[str, Any] | None:
    """Lists that say only that there is more, and take the id of the last item."""
    if not is_object(body) or body.get("has_more") is not True or "startingafter" not in takes:
        return None
    items = body.get("data")
    last = items[-1] if is_array(items) and items else None
    return {takes["startingafter"]: last["id"]} if is_object(last) and isinstance(last.get("id"), str) else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())
