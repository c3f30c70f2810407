"""The plain HTTP requests to a gateway: health, metrics, administration. Bytes in, a response out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic_core import from_json

from defserve.auth.bearer_tokens import MalformedToken, TokenVerifier, extract_bearer_token
from defserve.auth.oauth import format_bearer_challenge
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import encode
from defserve.gateway.gateway import METRICS_CONTENT_TYPE, Gateway
from defserve.protocols.mcpx.envelope import MCPX_PROTOCOL, is_gateway_only_kind

JSON: Final = "application/json"
HEAD_BYTES: Final = 16 * 1024
BODY_BYTES: Final = 64 * 1024
MAX_CAPABILITIES: Final = 256

_END: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,2048}) HTTP/1\.[01]")
_HEADER: Final = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]++):[ \t]*+((?:[^\x00\r\n \t]++|[ \t]++(?=[^\x00\r\n \t]))*+)[ \t]*+"
)
_CAPABILITIES: Final = re.compile(r"/admin/participants/([^/]+)/capabilities")


class GatewayRequest(NamedTuple):
    """A request. Names of headers are in lower case; each has all its values."""

    verb: str
    target: str
    headers: Mapping[str, list[str]]
    body: bytes = b""
    address: str = ""
    """Of the peer, or of whom a trusted proxy names."""

    @property
    def url(self) -> SplitResult:
        """The parts of the target. One that is no address has none, so that nothing is found there."""
        try:
            return urlsplit(self.target)
        except ValueError:
            return urlsplit("")

    def join_header(self, name: str) -> str | None:
        """All values of a header in one, as the gate needs them."""
        return ", ".join(self.headers[name]) if name in self.headers else None

    def token(self) -> str | None:
        """The bearer token; None if there is none that can be read."""
        found = extract_bearer_token(
            value.encode("latin-1", "replace") for value in self.headers.get("authorization", ())
        )
        return None if isinstance(found, MalformedToken) else found


class GatewayResponse(NamedTuple):
    status: HTTPStatus
    body: bytes
    media_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()

    def fields(self) -> list[tuple[str, str]]:
        """All headers, those of every response first. The connection is closed after it."""
        sizes = [("Content-Type", self.media_type), ("Content-Length", str(len(self.body)))]
        return [*sizes, ("Connection", "close"), ("Cache-Control", "no-store"), *self.headers]

    def encode(self, *, is_head: bool = False) -> bytes:
        """The bytes of the response. The one to HEAD has no body."""
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}", *map(": ".join, self.fields())]
        return "\r\n".join([*lines, "", ""]).encode() + (b"" if is_head else self.body)


def make_problem_response(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> GatewayResponse:
    return GatewayResponse(status, encode({"error": text}), headers=headers)


class RequestReader:
    """One request, as its bytes come. The head is read once; of the body, only the length is counted."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._head: GatewayRequest | None = None
        self._length = 0

    @property
    def is_head(self) -> bool:
        """Whether the request is for HEAD."""
        return self._data.startswith(b"HEAD ") if self._head is None else self._head.verb == "HEAD"

    def feed(self, data: bytes) -> GatewayRequest | GatewayResponse | None:
        """The request, a response to one that cannot be read, or None if more bytes have to come."""
        if self._head is None:
            # The end of the head may have come in two parts.
            begin = max(0, len(self._data) - len(_END) + 1)
            self._data += data
            end = self._data.find(_END, begin)
            if (len(self._data) if end < 0 else end) > HEAD_BYTES:
                return make_problem_response(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head of the request is too long"
                )
            if end < 0:
                return None
            read = _read_head(bytes(self._data[:end]))
            if isinstance(read, GatewayResponse):
                return read
            self._head, self._length = read
            del self._data[: end + len(_END)]
        else:
            self._data += data
        is_whole = len(self._data) >= self._length
        return self._head._replace(body=bytes(self._data[: self._length])) if is_whole else None


def _read_head(head: bytes) -> tuple[GatewayRequest, int] | GatewayResponse:
    """The request without its body, and the length of that; or the response to a head that cannot be read."""
    first, *lines = head.split(b"\r\n")
    line, found = _REQUEST_LINE.fullmatch(first), [_HEADER.fullmatch(each) for each in lines]
    if line is None or None in found:
        return make_problem_response(HTTPStatus.BAD_REQUEST, "this is not an HTTP request")
    headers: dict[str, list[str]] = {}
    for name, value in (each.groups() for each in found if each is not None):
        headers.setdefault(name.decode().lower(), []).append(value.decode("latin-1"))
    length = headers.get("content-length", ["0"])
    if "transfer-encoding" in headers or len(length) > 1 or not length[0].isdecimal() or len(length[0]) > 9:
        return make_problem_response(HTTPStatus.LENGTH_REQUIRED, "give the length of the body exactly once")
    if int(length[0]) > BODY_BYTES:
        return make_problem_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {BODY_BYTES} bytes")
    return GatewayRequest(line[1].decode(), line[2].decode(), headers), int(length[0])


async def answer_plain_request(
    gateway: Gateway,
    admins: TokenVerifier | None,
    request: GatewayRequest,
    failed: Callable[[GatewayRequest], float],
) -> GatewayResponse:
    """The response to a request that is not for a topic.

    `failed` counts a bad token and returns the seconds its sender has to wait.
    """
    path = request.url.path
    if path in _PAGES:
        return _PAGES[path](gateway) if request.verb == "GET" else make_method_not_allowed("GET")
    found = _CAPABILITIES.fullmatch(path)
    if found is None or admins is None:
        return make_problem_response(HTTPStatus.NOT_FOUND, "there is nothing here")
    return (
        await _promote(gateway, admins, unquote(found[1]), request, failed)
        if request.verb == "POST"
        else make_method_not_allowed("POST")
    )


_PAGES: Final[Mapping[str, Callable[[Gateway], GatewayResponse]]] = {
    "/health": lambda gateway: GatewayResponse(HTTPStatus.OK, encode({"status": "healthy", "protocol": MCPX_PROTOCOL})),
    "/healthz": lambda gateway: GatewayResponse(HTTPStatus.OK, b'{"status":"ok"}'),
    "/metrics": lambda gateway: GatewayResponse(
        HTTPStatus.OK, gateway.metrics.text(len(gateway.topics), gateway.participants).encode(), METRICS_CONTENT_TYPE
    ),
}


async def _promote(
    gateway: Gateway,
    admins: TokenVerifier,
    participant: str,
    request: GatewayRequest,
    failed: Callable[[GatewayRequest], float],
) -> GatewayResponse:
    token = request.token()
    admin = None if token is None else await admins.verify(token)
    if admin is None:
        if token is not None and (wait := failed(request)):
            return make_too_many_response(wait)
        why = format_bearer_challenge("invalid_token" if "authorization" in request.headers else None)
        return make_problem_response(
            HTTPStatus.UNAUTHORIZED, "an administrator's token is needed", ("WWW-Authenticate", why)
        )
    wanted = _parse_wanted(request.body)
    if isinstance(wanted, str):
        return make_problem_response(HTTPStatus.BAD_REQUEST, wanted)
    members = [one for one in gateway.find_members_named(participant) if wanted.topic in (None, one.topic.name)]
    if not members:
        return make_problem_response(HTTPStatus.NOT_FOUND, "no such participant is connected")
    if len({member.holder for member in members}) > 1:
        return make_problem_response(HTTPStatus.CONFLICT, "several guests have this name: say in which `topic`")
    change = gateway.change_capabilities(members[0], wanted.add, wanted.remove, admin.id)
    return GatewayResponse(
        HTTPStatus.OK,
        encode(
            {
                "participantId": participant,
                "oldCapabilities": change.old,
                "newCapabilities": change.new,
                "modifiedBy": admin.id,
                "modifiedAt": change.at,
                "topics": change.topics,
            }
        ),
    )


class Wanted(NamedTuple):
    """What an administrator asks for. Of guests with one name, `topic` says which one is meant."""

    add: list[str]
    remove: list[str]
    topic: str | None


def _parse_wanted(body: bytes) -> Wanted | str:
    """What is asked for, or what is wrong with the request."""
    try:
        asked = from_json(body)
    except ValueError as error:
        return f"the body is not JSON: {error}"
    if not is_object(asked) or not asked.keys() & {"add", "remove"} or asked.keys() - set(Wanted._fields):
        return "the body is an object with `add`, `remove` or both, and perhaps a `topic`"
    topic = asked.get("topic")
    if topic is not None and not isinstance(topic, str):
        return "`topic` is a name"
    lists: list[list[str]] = []
    for name in ("add", "remove"):
        given = asked.get(name, [])
        if (
            not is_array(given)
            or len(given) > MAX_CAPABILITIES
            or not all(isinstance(each, str) and each for each in given)
        ):
            return f"`{name}` is a list of capabilities"
        lists.append(list(given))
    if reserved := next(filter(is_gateway_only_kind, lists[0]), None):
        return f"{reserved!r} is reserved for the gateway"
    return Wanted(lists[0], lists[1], topic)


def make_too_many_response(wait: float) -> GatewayResponse:
    return make_problem_response(HTTPStatus.TOO_MANY_REQUESTS, "too many requests", ("Retry-After", str(int(wait) + 1)))


def make_method_not_allowed(verb: str) -> GatewayResponse:
    return make_problem_response(HTTPStatus.METHOD_NOT_ALLOWED, f"only {verb} is supported here", ("Allow", verb))
