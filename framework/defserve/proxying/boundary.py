"""What passes between a front and a backend: members of requests, results and errors, texts for models and people.

And what a front is told when a backend cannot answer.

Clients take some members for this server's own word: a tool to call instead, what a conversation has loaded, whose an
item is. A backend's word for them must not reach a client. Whatever passes is named here; the rest is left out. Every
error names the backend and says whether to try again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from defserve.base.hidden_characters import find_hidden_characters, remove_hidden_characters
from defserve.base.redaction import get_logger
from defserve.client.replies import Json
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import INTERNAL_ERROR
from defserve.errors import Draining, PeerError, PeerGone, PeerTimeout, ProtocolError, Refused, ToolError
from defserve.protocols.mcp.errors import (
    DEFSERVE_NAMESPACE,
    ERROR_META_KEY,
    ITEM_SOURCE_META_KEY,
    SERVER_ID_META_KEY,
    choose_relayed_error_code,
    is_server_full_error,
)
from defserve.protocols.mcp.lifecycle import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    Dialect,
)
from defserve.protocols.mcp.lifecycle import SERVER_INFO_META_KEY as SERVER_INFO_KEY
from defserve.protocols.mcp.tools import WRAPPED_META_KEY
from defserve.protocols.mgp.errors import (
    ResourceExhausted,
    ServerNotReady,
    ServerRestarting,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from defserve.protocols.mgp.terms import MGP_EXTENSION_ID
from defserve.proxying.mounted import CLEAN_EXIT_REASON, BackendStateName, MountedServer
from defserve.serve.address import AddressUnreachable, CredentialsRequired, HttpRefusal

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.proxying.targets import BackendSecrets


MGP_BLOCK: Final = "_mgp"
RESERVED: Final = (DEFSERVE_NAMESPACE, MGP_EXTENSION_ID)
"""How those members of `_meta` begin that clients take for our own."""
PASSED: Final = frozenset({ERROR_META_KEY, WRAPPED_META_KEY, DEFSERVE_NAMESPACE + "next"})
"""Those of them that only describe the backend's own result: why it failed, how it is wrapped, what comes next."""
OWN_MEMBERS: Final = frozenset({"state", "checkpoint"})
"""Members of a result in which a server moves its own state at a host (MCPL). That of a backend is not ours."""
PROMISES: Final[Mapping[str, bool]] = {
    "readOnlyHint": True,
    "destructiveHint": False,
    "idempotentHint": True,
    "openWorldHint": False,
}
"""A hint of a tool, and the value that promises less harm."""
STEERING: Final = frozenset({"fallback_tool"})
"""Members of an error that make a client call another tool. A backend does not know the names of tools here."""


def clean_result(result: Json) -> Json:
    """The result, changed in place: without members that only this server may say to its clients."""
    # Most results have none of these, and this is done for every call.
    if not OWN_MEMBERS.isdisjoint(result):
        for member in OWN_MEMBERS.intersection(result):
            del result[member]
    if MGP_BLOCK in result:
        result[MGP_BLOCK] = _without_steering(result[MGP_BLOCK])
    if "_meta" in result:
        meta = result["_meta"]
        if not is_object(meta):
            del result["_meta"]
            return result
        for name in [name for name in meta if name.startswith(RESERVED) and name not in PASSED]:
            del meta[name]
        if ERROR_META_KEY in meta:
            meta[ERROR_META_KEY] = clean_error(meta[ERROR_META_KEY])
        if not meta:
            del result["_meta"]
    return result


def keep_warning_hints(hints: Mapping[str, Any]) -> dict[str, Any]:
    """The hints of a server that nobody vouches for: its warnings, and nothing that only looks like a hint."""
    kept = {name: value for name, value in hints.items() if name in PROMISES and value is (not PROMISES[name])}
    return {"title": hints["title"], **kept} if isinstance(hints.get("title"), str) else kept


def clean_error(data: Any) -> Any:
    """The `data` of an error, or what a failed result says of it, without what would steer a client."""
    if not is_object(data):
        return data
    kept = _without_steering(data)
    return {**kept, MGP_BLOCK: _without_steering(kept[MGP_BLOCK])} if MGP_BLOCK in kept else kept


def _without_steering(block: Any) -> Any:
    return {name: value for name, value in block.items() if name not in STEERING} if is_object(block) else block


# -- What of a request and of its result is passed on between a front and a backend: each leg has members of its own.


FRONT_META: Final = frozenset(
    {PROTOCOL_VERSION_META_KEY, CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, LOG_LEVEL_META_KEY}
)
"""Members of `_meta` that concern the front's leg alone."""
DECISIONS: Final = (DEFSERVE_NAMESPACE, MGP_EXTENSION_ID)
"""How those members begin in which a front grants something, or says what it keeps of ours. They are meant for us."""
ROUND_TRIP_FIELDS: Final = ("resultType", "inputRequests", "requestState")
STATELESS_ONLY: Final = frozenset({*ROUND_TRIP_FIELDS, "ttlMs", "cacheScope"})


def filter_front_meta(meta: Any) -> Json:
    """The `_meta` of a front's request, without what is meant for us."""
    if not isinstance(meta, dict):
        return {}
    passed: Json = meta  # pyright: ignore[reportUnknownVariableType]
    return {name: value for name, value in passed.items() if name not in FRONT_META and not name.startswith(DECISIONS)}


def adapt_backend_result(result: Json, dialect: Dialect) -> Json:
    """A result without what concerns the backend's leg, what only we may say, or what the front's version does not
    know.
    """
    clean_result(result)
    if "_meta" in result:
        meta = result["_meta"]
        if meta.pop(SERVER_INFO_KEY, None) and not meta:
            del result["_meta"]
    if not dialect.stateless:
        if not STATELESS_ONLY.isdisjoint(result):
            for member in STATELESS_ONLY.intersection(result):
                del result[member]
        if "structured" not in dialect.has:
            result.pop("structuredContent", None)
    return result


# -- What a backend writes for models and people: bounded, and without characters that hide or reorder text.


MAX_TEXT: Final = 64 * 1024
PROSE: Final = frozenset({"description", "title"})
EXACT: Final = frozenset({"enum", "const"})
"""Where a text is sent back to the backend as it is, so that it cannot be changed here."""
OUR_WORDS: Final = frozenset({ITEM_SOURCE_META_KEY, SERVER_ID_META_KEY, "featureSet"})
"""Members of `_meta` that only this server may say."""
SHOWN_IN_FORMS: Final = PROSE | {"enumNames"}
MAX_QUESTION: Final = 4_000
MAX_QUESTION_LINES: Final = 20
"""Of a question: fewer than a terminal has."""
QUOTE_MARK: Final = "  | "
LAYOUT: Final = "\r\n\t"
METADATA: Final = "_meta"
"""For programs alone: nobody is shown it."""


def sanitize_listed_item(listed: Json) -> Json:
    """A listed item whose texts, at any depth, can be shown. The same object if they all can.

    None says that it is a tool of ours, whose it is, or to which of our feature sets it belongs. Names and choices stay
    as they are: see `find_hidden_character_in_names`.
    """
    meta = listed.get(METADATA)
    if is_object(meta) and not OUR_WORDS.isdisjoint(meta):
        listed = {**listed, METADATA: {name: value for name, value in meta.items() if name not in OUR_WORDS}}
    return _clean_value(listed)


def find_hidden_character_in_names(listed: Json) -> str | None:
    """Why an item cannot be offered: a member, a choice or an argument of it has a character that cannot be seen.

    Such a text is sent back as it came, so it cannot be cleaned, and two that look alike would differ.
    """
    for kind, text in _exact_texts(listed, ""):
        if text.isascii() and text.isprintable():
            continue
        for index, what in find_hidden_characters(text):
            if text[index] not in LAYOUT or kind == NAME_KIND:
                return f"{kind} in its schema has a hidden character ({what} U+{ord(text[index]):04X})"
    return None


NAME_KIND: Final = "a name"


def add_asker_to_question(id: str, method: str, params: Json) -> Json:
    """A question of a backend as its front is asked it: it begins with who asks, and hides no character.

    Who asks stays in sight: the rest is short, and its lines are marked. What has no text to begin with says it in
    `_meta` alone. Raises ProtocolError for a form with names or choices that do not show all their characters.
    """
    meta = params.get("_meta")
    named: Json = {**params, "_meta": {**(meta if is_object(meta) else {}), SERVER_ID_META_KEY: id}}
    if method == "elicitation/create":
        named |= sanitize_listed_item({name: value for name, value in params.items() if name != "_meta"})
        if is_object(schema := named.get("requestedSchema")):
            for kind, text in _exact_texts(schema, ""):
                if (hidden := next(find_hidden_characters(text), None)) is not None:
                    raise ProtocolError(f"a form cannot be shown: {kind} in it has a hidden character ({hidden[1]})")
            named["requestedSchema"] = _on_one_line(schema)
        message = named.get("message")
        said = quote_backend_text(message, MAX_QUESTION, MAX_QUESTION_LINES) if isinstance(message, str) else ""
        named["message"] = f"{asker_words(id)} asks: {said}" if said else asker_words(id)
    elif method == "sampling/createMessage":
        named |= _clean_value({name: value for name, value in params.items() if name != METADATA})
        prompt = named.get("systemPrompt")
        said = quote_backend_text(prompt, MAX_TEXT, MAX_TEXT) if isinstance(prompt, str) else ""
        named["systemPrompt"] = f"{asker_words(id)} asks.{f' {said}' if said else ''}"
    return named


def quote_backend_text(text: str, longest: int, most_lines: int) -> str:
    """A text of a backend inside one of ours: no empty lines, each line but the first marked, and what is cut is said.

    So none of its lines can be taken for a line of ours, and none of ours is scrolled out of sight.
    """
    clean = (remove_hidden_characters(line, keep="\t").strip() for line in text[:longest].splitlines())
    lines = [line for line in clean if line]
    more = "" if len(text) <= longest else f" … ({len(text) - longest} more characters are left out)"
    if len(lines) > most_lines:
        lines, more = lines[:most_lines], f" … ({len(lines) - most_lines} more lines are left out)"
    return f"\n{QUOTE_MARK}".join(lines) + more


def _on_one_line(value: Any, member: str = "") -> Any:
    """A form whose titles and descriptions are one line each: a terminal shows them beside our words."""
    if is_object(value):
        is_schema = member != "properties"
        return {name: _on_one_line(inner, name if is_schema else "") for name, inner in value.items()}
    if is_array(value):
        return [_on_one_line(item, member) for item in value]
    if isinstance(value, str) and member not in EXACT:
        return " ".join(value.split())[:MAX_QUESTION] if member in SHOWN_IN_FORMS else value
    return value


def asker_words(id: str) -> str:
    return f"Server {id!r}"


def _exact_texts(value: Any, member: str) -> Iterator[tuple[str, str]]:
    """The texts of an item that must stay as they are, each with what it is."""
    if is_object(value):
        for name, inner in value.items():
            # A property may be called `_meta`.
            if name != METADATA or member == "properties":
                yield NAME_KIND, name
                yield from _exact_texts(inner, "" if member == "properties" else name)
        if member == "arguments" and isinstance(name := value.get("name"), str):
            yield NAME_KIND, name
    elif is_array(value):
        for item in value:
            yield from _exact_texts(item, member)
    elif isinstance(value, str) and member in EXACT:
        yield "a choice", value


def _clean_value(value: Any, member: str = "") -> Any:
    if isinstance(value, str):
        return value if member in EXACT else _text(value, member in PROSE)
    if is_object(value):
        # A property may be called `enum` or `_meta`.
        is_schema = member != "properties"
        members: Json = {
            name: inner if is_schema and name == METADATA else _clean_value(inner, name if is_schema else "")
            for name, inner in value.items()
        }
        return members if any(members[name] is not value[name] for name in members) else value
    if is_array(value):
        items = [_clean_value(item, member) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def _text(text: str, is_prose: bool) -> str:
    if not (text.isascii() and text.isprintable()):
        text = remove_hidden_characters(text, keep=LAYOUT)
    return text if not is_prose or len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"


# -- What a front is told when a backend cannot answer. Every error names the backend and says whether to try again.
#
# What the backend wrote to standard error, its command and its address are for operators: they go to the log.


RETRY_MS = 1_000
OWN_FIELDS = ("server_id", "trace_id")
"""What our errors say themselves. A backend's word for it must not be taken for ours."""

# A state, and whether the server is a child that we start; an address may be down, and nobody here restarts it.
UNSETTLED_STATES: Final[Mapping[tuple[BackendStateName, bool], str]] = {
    ("connecting", True): "is still starting",
    ("connecting", False): "is not connected yet",
    ("restarting", True): "is being restarted",
    ("restarting", False): "cannot be reached at the moment",
}

log = get_logger("proxying")


class BackendMisbehaved(PeerError):
    """What a backend did wrong, in our own words: clients may read them. The words of links are for the log."""


class RelayedError(ProtocolError):
    """A backend answered with a protocol error. Its code and data are kept; `server_id` says whose error it is."""

    error_type = "upstream_error"


def make_not_connected_error(server: MountedServer, state: BackendStateName, why: str = "") -> Exception:
    """Why a call cannot go to a backend now. It was not sent, so it is safe to send it again.

    `why` is a plain sentence of ours that anybody may read.
    """
    id = server.id
    data: dict[str, Any] = {"server_id": id, "state": state}
    if state == "draining":
        return Draining(f"server {id!r} is shutting down", data={**data, "retry_after_ms": RETRY_MS})
    if state in ("connecting", "restarting"):
        what = UNSETTLED_STATES[state, server.target.isolates]
        return ServerRestarting(f"server {id!r} {what}; try again", data=data, retryable=True, retry_after_ms=RETRY_MS)
    text = f"server {id!r} is not connected ({state}): {why or server.state_descriptions[state]}"
    return ServerNotReady(text, data=data, retry_after_ms=RETRY_MS)


def make_busy_error(id: str, what: str) -> ResourceExhausted:
    """There is no room for this call. It was not sent."""
    return ResourceExhausted(f"server {id!r}: {what}; try again later", data={"server_id": id}, retry_after_ms=RETRY_MS)


def make_timeout_error(id: str, call: Call, state: BackendStateName, *, was_sent: bool) -> UpstreamTimeout:
    """The time of a call is up, and its backend has not answered; or the call has not even been sent."""
    data: dict[str, Any] = {"server_id": id, "state": state}
    words = "timed out" if call.timer is None else call.timer.error.message
    if call.timer is not None:
        data |= call.timer.error.data
    if not was_sent:
        return UpstreamTimeout(f"server {id!r} {words} before the call was sent; try again", data=data)
    return UpstreamTimeout(
        f"server {id!r} {words}; the call may have had effects", data={**data, "may_have_had_effects": True}
    )


def make_call_error(id: str, error: PeerError, state: BackendStateName, secrets: BackendSecrets) -> Exception:
    """A call that was sent has no result: the backend left, was silent, or refused it."""
    data = {"server_id": id, "state": state, "may_have_had_effects": True}
    if isinstance(error, PeerTimeout):
        return UpstreamTimeout(f"server {id!r} did not answer in time; the call may have had effects", data=data)
    if isinstance(error, CredentialsRequired):
        return UpstreamError(f"server {id!r} does not accept the credentials it is called with", data={"server_id": id})
    if isinstance(error, HttpRefusal):
        return _make_refusal_error(id, error, secrets)
    if isinstance(error, BackendMisbehaved):
        return UpstreamError(error.message, data={"server_id": id, "may_have_had_effects": True})
    if not isinstance(error, PeerGone):
        if error.code == PeerError("").code and error.data is None:
            log.warning("server %r: a call has no usable answer: %s", id, secrets.redact_text(error.message))
            return UpstreamError(f"server {id!r} gave no usable answer", data={"server_id": id})
        # Over HTTP an error may come as the refusal of the request.
        return make_relayed_error(id, {"code": error.code, "message": error.message, "data": error.data}, secrets)
    if is_unsent(error):
        log.warning("server %r is not reachable: %s", id, secrets.redact_text(error.message))
        return UpstreamUnavailable(
            f"server {id!r} is not reachable, so the call was not sent; try again later",
            data={"server_id": id, "state": state},
            retryable=True,
            retry_after_ms=RETRY_MS,
        )
    how = _describe_end(error)
    log.warning("server %r %s before it answered a call: %s", id, how, secrets.redact_text(error.message))
    return UpstreamUnavailable(
        f"server {id!r} {how} before it answered; the call may have had effects",
        data=data,
        retryable=True,
        retry_after_ms=RETRY_MS,
    )


def is_unsent(error: PeerError) -> bool:
    """Whether nobody was there to take a request, so that it had no effects."""
    return isinstance(error, AddressUnreachable) and not error.was_sent


def _describe_end(error: PeerGone) -> str:
    """How a backend ended, in words that say nothing of its command line."""
    if CLEAN_EXIT_REASON in error.message:
        return "exited"
    is_crash = " exited with code " in error.message or " was killed by signal " in error.message
    return "crashed" if is_crash else "ended the connection"


def _make_refusal_error(id: str, error: HttpRefusal, secrets: BackendSecrets) -> UpstreamError:
    """An HTTP error. What it says of the address, and the page that came with it, are for the log."""
    log.warning("server %r refused a call: %s", id, secrets.redact_text(error.message))
    status: int = error.data["status"]
    data: dict[str, Any] = {"server_id": id, "status": status}
    text = f"server {id!r} refused the call (HTTP {status})"
    if status in (429, 503):
        return UpstreamUnavailable(f"{text}; try again later", data=data, retry_after_ms=RETRY_MS)
    return UpstreamError(text, data=data | ({"may_have_had_effects": True} if status >= 500 else {}))


def make_malformed_result_error(id: str, member: str) -> UpstreamError:
    """A result lacks what every result of its kind has."""
    return UpstreamError(
        f"server {id!r} gave a result without a list as its {member!r}",
        data={"server_id": id, "may_have_had_effects": True},
    )


def make_relayed_error(id: str, error: dict[str, Any], secrets: BackendSecrets) -> RelayedError:
    """A backend's own error, as it came, with its name.

    A code that nobody may send on becomes an internal error, and is told as `inner_code`.
    """
    given, message, data = error.get("code"), error.get("message"), clean_error(secrets.redact_value(error.get("data")))
    code = given if isinstance(given, int) and not isinstance(given, bool) else INTERNAL_ERROR
    fields: dict[str, Any] = data if is_object(data) else {} if data is None else {"detail": data}
    if is_array(pages := fields.get("elicitations")):  # the pages that a person has to visit first
        named = [add_asker_to_question(id, "elicitation/create", page) if is_object(page) else page for page in pages]
        fields = {**fields, "elicitations": named}
    if is_server_full_error(code, fields):
        fields = {"retry_after_ms": RETRY_MS, **fields}
    if (relayable := choose_relayed_error_code(code)) != code:
        fields = {**fields, "inner_code": code}
    return RelayedError(
        secrets.redact_value(message) if isinstance(message, str) else f"server {id!r} gave an error without a message",
        code=relayable,
        data=_name_inner_fields(fields, id),
    )


def raise_mgp_error(id: str, error: dict[str, Any], secrets: BackendSecrets) -> None:
    """Raises the exception that an error of MGP means, so that a front hears it in its own protocol."""
    from defserve.client.mgp.server_claims import parse_mgp_failure

    known = make_relayed_error(id, error, secrets)
    spoken = parse_mgp_failure(PeerError(known.message, code=known.code, data=known.data))
    told = spoken.exception() if spoken is not None else None
    if isinstance(told, Refused | ToolError):
        told.data["server_id"] = id
        raise told


def _name_inner_fields(fields: dict[str, Any], id: str) -> dict[str, Any]:
    """The data of a backend's error. It may itself be a kernel, with a server and a trace of its own to tell of."""
    inner = {f"inner_{name}": fields[name] for name in OWN_FIELDS if name in fields}
    return {name: value for name, value in fields.items() if name not in OWN_FIELDS} | inner | {"server_id": id}
