"""The HTTP paths of the reference gateway, `/v0.1/…`: a token, the topics, who is in one, what was said, how often."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic_core import from_json

from defserve.auth.bearer_tokens import TokenVerifier
from defserve.auth.oauth import BearerError, format_bearer_challenge
from defserve.auth.rates import Rate, TokenBuckets
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import encode
from defserve.gateway.gateway import Gateway
from defserve.gateway.policy import (
    PARTICIPANT_NAME_FIX,
    Admission,
    GuestRules,
    IssuedTokenPolicy,
    is_matched_by_pattern,
    is_participant_name,
    is_topic_name,
)
from defserve.gateway.requests import (
    MAX_CAPABILITIES,
    GatewayRequest,
    GatewayResponse,
    make_method_not_allowed,
    make_problem_response,
)
from defserve.protocols.mcpx.envelope import CAPABILITY_PROFILES, is_gateway_only_kind
from defserve.serve.sockets import get_client_network

API_PATH_PREFIX: Final = "/v0.1/"
MAX_HISTORY: Final = 1_000
ISSUING: Final = Rate(per_second=1, burst=20)

_IN_TOPIC: Final = re.compile(r"/v0\.1/topics/([^/]+)/(participants|history|rate-limit)")


class TopicApi:
    """Answers requests below `/v0.1/`. `failed` counts a bad token and returns the seconds its sender has to wait."""

    def __init__(
        self,
        gateway: Gateway,
        admins: TokenVerifier | None,
        issued: IssuedTokenPolicy | None,
        failed: Callable[[GatewayRequest], float],
    ) -> None:
        self._gateway, self._admins, self._issued, self._failed = gateway, admins, issued, failed
        self._pace = TokenBuckets(ISSUING)

    async def answer_request(self, request: GatewayRequest) -> GatewayResponse:
        path = urlsplit(request.target).path
        if path == f"{API_PATH_PREFIX}auth/token":
            return await self._token(request) if request.verb == "POST" else make_method_not_allowed("POST")
        found = _IN_TOPIC.fullmatch(path)
        if found is None and path != f"{API_PATH_PREFIX}topics":
            return make_problem_response(HTTPStatus.NOT_FOUND, "there is nothing here")
        if request.verb != "GET":
            return make_method_not_allowed("GET")
        if found is None:
            return await self._topics(request)
        topic = unquote(found[1])
        admission = await self._admit_request(request, topic)
        return (
            admission if isinstance(admission, GatewayResponse) else _PAGES[found[2]](self, topic, admission, request)
        )

    # -- a topic -----------------------------------------------------------------------------------------

    async def _topics(self, request: GatewayRequest) -> GatewayResponse:
        """The topics with somebody in them that the token may enter."""
        if (token := request.token()) is None:
            return _make_unauthorized_response("a token is needed", None)
        admit = self._gateway.policy.admit
        names = [name for name in sorted(self._gateway.topics) if await admit(token, name) is not None]
        if not names and (wait := self._failed(request)):
            return _too_many(wait)
        return GatewayResponse(HTTPStatus.OK, encode({"topics": names}))

    async def _admit_request(self, request: GatewayRequest, topic: str) -> Admission | GatewayResponse:
        if (token := request.token()) is None:
            return _make_unauthorized_response("a token is needed", None)
        admission = await self._gateway.policy.admit(token, topic) if is_topic_name(topic) else None
        if admission is not None:
            return admission
        if wait := self._failed(request):
            return _too_many(wait)
        # The same answer for a bad token and a wrong topic: nobody learns which topics exist.
        return make_problem_response(HTTPStatus.FORBIDDEN, "invalid token or topic")

    def _participants(self, topic: str, admission: Admission, request: GatewayRequest) -> GatewayResponse:
        found = self._gateway.topics.get(topic)
        members = found.members.values() if found is not None else ()
        shown = [{"id": member.id, "capabilities": member.capabilities.patterns} for member in members]
        return GatewayResponse(HTTPStatus.OK, encode({"participants": shown}))

    def _history(self, topic: str, admission: Admission, request: GatewayRequest) -> GatewayResponse:
        """Newest first. `before` is the id or the `ts` of a message; `limit` is 100 unless given."""
        query = parse_qs(urlsplit(request.target).query)
        limit, before = query.get("limit", ["100"])[0], query.get("before", [""])[0]
        if not limit.isdecimal() or not limit.isascii() or len(limit) > 6 or not 0 < int(limit) <= MAX_HISTORY:
            return make_problem_response(HTTPStatus.BAD_REQUEST, f"limit is a number from 1 to {MAX_HISTORY}")
        found = self._gateway.topics.get(topic)
        kept = [(frame, from_json(frame)) for frame in found.history] if found is not None else []
        if before:
            ends = [place for place, (_, each) in enumerate(kept) if before in (each["id"], each.get("ts"))]
            kept = kept[: ends[0]] if ends else kept
        if admission.routing == "directed":
            mine = admission.participant
            kept = [(frame, each) for frame, each in kept if not each.get("to") or mine in (*each["to"], each["from"])]
        frames = [frame for frame, _ in kept[-int(limit) :]]
        return GatewayResponse(HTTPStatus.OK, b'{"history":[%b]}' % b",".join(reversed(frames)))

    def _rate_limit(self, topic: str, admission: Admission, request: GatewayRequest) -> GatewayResponse:
        """How many messages the caller has sent in this minute, and when counting begins anew."""
        found = self._gateway.topics.get(topic)
        member = found.members.get(admission.participant) if found is not None else None
        if member is None:
            return make_problem_response(
                HTTPStatus.NOT_FOUND, f"{admission.participant} is not in the topic; connect to it first"
            )
        now = self._gateway.clock()
        member.begin_window(now)
        resets = datetime.now(UTC) + timedelta(seconds=member.window_ends - now)
        counts = {"messages": member.messages, "chatMessages": member.chat_messages}
        return GatewayResponse(
            HTTPStatus.OK,
            encode({**counts, "resetTime": resets.isoformat(timespec="milliseconds").replace("+00:00", "Z")}),
        )

    # -- a token -----------------------------------------------------------------------------------------

    async def _token(self, request: GatewayRequest) -> GatewayResponse:
        token = request.token()
        if token is None and (self._issued is None or self._issued.guests is None):
            return make_problem_response(
                HTTPStatus.FORBIDDEN,
                "this gateway gives tokens to nobody without one; its operator can allow it with [guests]",
            )
        if token is not None and (self._admins is None or await self._admins.verify(token) is None):
            wait = self._failed(request)
            return (
                _too_many(wait)
                if wait
                else _make_unauthorized_response("this is not an administrator's token", "invalid_token")
            )
        asked = _parse_token_request(request.body)
        if isinstance(asked, str):
            return make_problem_response(HTTPStatus.BAD_REQUEST, asked)
        assert self._issued is not None
        participant, topic, wanted = asked
        if token is not None and self._issued.is_guest_name(participant):
            return make_problem_response(
                HTTPStatus.FORBIDDEN, f"guests may take the name {participant}; choose another"
            )
        if token is not None:
            return await self._issue(
                self._issued, participant, topic, wanted or CAPABILITY_PROFILES["proposal-only"], False
            )
        guests = self._issued.guests
        assert guests is not None
        if wait := self._pace.take_token(get_client_network(request.address)):
            return _too_many(wait)
        if (refusal := self._refusal(guests, participant, topic, wanted)) is not None:
            return refusal
        return await self._issue(self._issued, participant, topic, wanted or guests.capabilities, True)

    def _refusal(
        self, guests: GuestRules, participant: str, topic: str, wanted: tuple[str, ...]
    ) -> GatewayResponse | None:
        if not guests.is_guest_name(participant):
            return make_problem_response(HTTPStatus.FORBIDDEN, f"a guest here is called {' or '.join(guests.names)}")
        if not is_matched_by_pattern(guests.topics, topic):
            return make_problem_response(HTTPStatus.FORBIDDEN, "guests may not enter this topic")
        if not set(wanted) <= set(guests.capabilities):
            return make_problem_response(
                HTTPStatus.FORBIDDEN, f"a guest here may have {', '.join(guests.capabilities)}"
            )
        if self._is_connected(participant, topic):
            return make_problem_response(
                HTTPStatus.CONFLICT, f"{participant} is in the topic already; take another name"
            )
        return None

    async def _issue(
        self, issued: IssuedTokenPolicy, participant: str, topic: str, held: tuple[str, ...], is_guest: bool
    ) -> GatewayResponse:
        token = issued.issue_token(participant, topic, held, is_guest=is_guest, is_connected=self._is_connected)
        if token is None:
            return make_problem_response(
                HTTPStatus.SERVICE_UNAVAILABLE, "too many tokens are given out", ("Retry-After", "60")
            )
        if await self._gateway.policy.admit(token, topic) is None:
            issued.revoke_token(token)
            return make_problem_response(HTTPStatus.FORBIDDEN, "there is no such topic here")
        return GatewayResponse(HTTPStatus.OK, encode({"token": token, "capabilities": held}))

    def _is_connected(self, participant: str, topic: str) -> bool:
        found = self._gateway.topics.get(topic)
        return found is not None and participant in found.members


_PAGES: Final[Mapping[str, Callable[[TopicApi, str, Admission, GatewayRequest], GatewayResponse]]] = {
    "participants": TopicApi._participants,  # pyright: ignore[reportPrivateUsage]
    "history": TopicApi._history,  # pyright: ignore[reportPrivateUsage]
    "rate-limit": TopicApi._rate_limit,  # pyright: ignore[reportPrivateUsage]
}


def _parse_token_request(body: bytes) -> tuple[str, str, tuple[str, ...]] | str:
    """The participant, the topic and the capabilities that are asked for, or what is wrong with the request."""
    try:
        found: Any = from_json(body)
    except ValueError as error:
        return f"the body is not JSON: {error}"
    participant, topic = (found.get("participantId"), found.get("topic")) if is_object(found) else (None, None)
    if not isinstance(participant, str) or not isinstance(topic, str):
        return "participantId and topic are required"
    if not is_participant_name(participant):
        return f"participantId: {PARTICIPANT_NAME_FIX}"
    if not is_topic_name(topic):
        return "topic: this cannot be the name of a topic"
    wanted: Any = found.get("capabilities") or []
    if (
        not is_array(wanted)
        or len(wanted) > MAX_CAPABILITIES
        or not all(isinstance(each, str) and each for each in wanted)
    ):
        return "capabilities: expected a list of capabilities"
    if reserved := next(filter(is_gateway_only_kind, wanted), None):
        return f"capabilities: {reserved!r} is reserved for the gateway"
    return participant, topic, tuple(wanted)


def _make_unauthorized_response(text: str, error: BearerError | None) -> GatewayResponse:
    return make_problem_response(HTTPStatus.UNAUTHORIZED, text, ("WWW-Authenticate", format_bearer_challenge(error)))


def _too_many(wait: float) -> GatewayResponse:
    return make_problem_response(HTTPStatus.TOO_MANY_REQUESTS, "too many requests", ("Retry-After", str(int(wait) + 1)))
