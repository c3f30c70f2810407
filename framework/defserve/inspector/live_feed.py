"""What a server does on its own, by MCPL: events that it pushes, messages of channels, scopes that it asks for, hooks.

Our side answers as the person at the page says. All that is kept is bounded.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from itertools import count, takewhile
from typing import Any, Final, Literal, TypeAlias, cast, get_args
from uuid import uuid4

from defserve.base.peer_bounds import RecentItems
from defserve.client.mcpl.channels import ChannelMessage
from defserve.client.mcpl.hooks import AFTER_INFERENCE, BEFORE_INFERENCE
from defserve.client.mcpl.inference import InferenceRequest, Model
from defserve.client.mcpl.options import Elevation
from defserve.client.mcpl.peer import McplPeer
from defserve.client.mcpl.push import EventAnswer, PushedEvent
from defserve.core.json_values import is_array, is_object
from defserve.inspector.protocol import BadMessage, Json
from defserve.protocols.mcpl.content import Content, Turn, encode_mcpl_content, read_mcpl_content
from defserve.protocols.mcpl.vocabulary import HookFailed

Mode: TypeAlias = Literal["accept", "ask", "refuse"]
MODES: Final = get_args(Mode)
Version: TypeAlias = Literal["0.4", "0.5"]
VERSIONS: Final = get_args(Version)
MAX_EVENTS: Final = 300
MAX_MESSAGES: Final = 300
MAX_WAITING_DECISIONS: Final = 100
MAX_TEXT_LENGTH: Final = 4_000


class LiveFeed:
    """The newest events, messages and asked scopes of all eras. `push` tells the pages, by the topic `live`.

    mode  what happens to an event: it is accepted, refused, or waits until the person decides
    off   the feature sets that the person switched off, for conversations that begin later, too
    offered  the version of MCPL that conversations offer
    """

    def __init__(self, push: Callable[[str, Any], object]) -> None:
        self.mode: Mode = "accept"
        self.offered: Version = "0.4"
        self.off: set[str] = set()
        self.scopes: dict[str, dict[str, list[str]]] = {}
        self.events: RecentItems[Json] = RecentItems(MAX_EVENTS)
        self.messages: RecentItems[Json] = RecentItems(MAX_MESSAGES)
        self.asked: dict[int, Json] = {}
        self._push, self._numbers = push, count(1)
        self._waiting: dict[int, asyncio.Future[bool]] = {}

    async def receive_event(self, era: str, event: PushedEvent) -> EventAnswer:
        """Take an event. The receipt that the server gets says what became of it."""
        row: Json = {
            "number": next(self._numbers),
            "era": era,
            "id": event.id,
            "set": event.feature_set,
            "text": text_of(event.content),
            "at": time.time(),
            "state": "waits" if self.mode == "ask" else "accepted" if self.mode == "accept" else "refused",
            "reason": "" if self.mode != "refuse" else "the inspector refuses events",
        }
        self.events.append(row)
        self._push("live", {"kind": "event", "row": row})
        if self.mode == "ask":
            state, reason = "refused", "the server no longer waits"
            try:
                is_accepted = await self._await_decision(row["number"])
                state = "accepted" if is_accepted else "refused"
                reason = "" if is_accepted else "the person at the inspector refused it"
            finally:
                row["state"], row["reason"] = state, reason
                self._push("live", {"kind": "event", "row": row})
        return EventAnswer(row["state"] == "accepted", reason=row["reason"] or None)

    @contextmanager
    def report_inference(self, era: str, id: str, feature_set: str, text: str) -> Generator[None]:
        """Tell of an inference that a server asks for, and how it ended."""
        row: Json = {"number": next(self._numbers), "kind": "inference", "era": era, "id": id, "set": feature_set}
        row |= {"text": text[:MAX_TEXT_LENGTH], "at": time.time(), "state": "waits", "reason": ""}
        self.events.append(row)
        self._push("live", {"kind": "event", "row": row})
        state, reason = "refused", "it was not answered"
        try:
            yield
            state, reason = "answered", ""
        finally:
            row["state"], row["reason"] = state, reason
            self._push("live", {"kind": "event", "row": row})

    def receive_message(self, era: str, message: ChannelMessage) -> None:
        """Take a message of a channel."""
        author = message.author
        name = (author.name or author.id) if author is not None else message.server_id
        self.add_message(era, message.channel_id, name, text_of(message.content), id=message.id)

    def add_message(self, era: str, channel: str, who: str, text: str, **more: Any) -> Json:
        """Keep a message, of a server or of ours."""
        row: Json = {"number": next(self._numbers), "era": era, "channel": channel, "who": who, "at": time.time()}
        row |= {"text": text[:MAX_TEXT_LENGTH], **more}
        self.messages.append(row)
        self._push("live", {"kind": "message", "row": row})
        return row

    async def ask_for_scope(self, era: str, elevation: Elevation) -> bool:
        """Whether the person lets a set act in a scope that is on no list."""
        number = next(self._numbers)
        asked = {"number": number, "era": era, "set": elevation.feature_set, "label": elevation.label}
        self.asked[number] = {**asked, "at": time.time()}
        self._push("live", {"kind": "scope"})
        try:
            return await self._await_decision(number)
        finally:
            del self.asked[number]
            self._push("live", {"kind": "scope"})

    async def _await_decision(self, number: int) -> bool:
        """What the person says. No, if too much waits already."""
        if len(self._waiting) >= MAX_WAITING_DECISIONS:
            return False
        self._waiting[number] = decision = asyncio.get_running_loop().create_future()
        try:
            return await decision
        finally:
            del self._waiting[number]

    def decide_pending(self, number: int, is_allowed: bool) -> bool:
        """Answer an event or a scope that waits. False if it waits no longer."""
        waiting = self._waiting.get(number)
        if waiting is None or waiting.done():
            return False
        waiting.set_result(is_allowed)
        return True

    def set_offered_version(self, version: str) -> None:
        if version not in VERSIONS:
            raise BadMessage(f"'version' is one of {', '.join(VERSIONS)}")
        self.offered = cast(Version, version)

    def set_event_mode(self, mode: str) -> None:
        """Change what happens to events. Those that wait are decided by it. Raises BadMessage."""
        if mode not in MODES:
            raise BadMessage(f"there is no mode {mode!r}", fix=f"use one of {', '.join(MODES)}")
        self.mode = cast(Mode, mode)
        if mode != "ask":
            for number in self._waiting.keys() - self.asked.keys():
                self.decide_pending(number, mode == "accept")


def text_of(content: Sequence[Content]) -> str:
    """Content as one text. A part that is no text is named."""
    told = (
        block.get("text") if block.get("type") == "text" else f"[{block.get('type')}]"
        for block in encode_mcpl_content(content)
    )
    return "\n".join(map(str, told))[:MAX_TEXT_LENGTH]


# -- Inference that a server asks for (MCPL §11), put to the person as a request to sample a model is.


Sample: TypeAlias = Callable[[Json], Awaitable[Any]]
"""Answers the params of `sampling/createMessage`: with a text, or with the whole result."""

TOKENS: Final = 1_000
"""How long an answer may be if the server does not say."""


def make_person_model(feed: LiveFeed, era: Callable[[], str], sample: Sample) -> Model:
    """A model that is the person, or the script that answers for it. The feed tells of every request."""

    async def infer(request: InferenceRequest) -> str:
        params = as_sampling(request)
        with feed.report_inference(era(), request.inference_id, request.feature_set, get_last_text(params)):
            return get_answer_text(await sample(params))

    return infer


def as_sampling(request: InferenceRequest) -> Json:
    """The request in the words of MCP's sampling."""
    said = [
        (str(message["role"]), encode_mcpl_content(read_mcpl_content(message["content"])))
        for message in request.messages
    ]
    system = [_text(content) for role, content in said if role == "system"]
    params: Json = {
        "messages": [{"role": role, "content": content} for role, content in said if role != "system"],
        "maxTokens": request.max_tokens or TOKENS,
    }
    if system:
        params["systemPrompt"] = "\n\n".join(system)
    if request.temperature is not None:
        params["temperature"] = request.temperature
    return params


def get_last_text(params: Json) -> str:
    """The text of the last message."""
    return _text(params["messages"][-1]["content"]) if params["messages"] else params.get("systemPrompt", "")


def get_answer_text(answer: Any) -> str:
    """The text of an answer to sampling."""
    content = answer.get("content") if is_object(answer) else answer
    return content if isinstance(content, str) else _text(content if is_array(content) else [content])


def _text(content: Sequence[Any]) -> str:
    return "\n".join(str(block.get("text", "")) for block in content if is_object(block))


# -- One turn without a model: what the hooks of a server put into a prompt, and what they make of an answer.


MAX_MESSAGE_LENGTH: Final = 100_000
MAX_WORDS: Final = 4_000
"""Longer answers are shown whole, without marks of what changed."""
MAX_INJECTIONS: Final = 200
BEFORE_USE: Final = "contextHooks.beforeInference"
AFTER_USE: Final = "contextHooks.afterInference"


class TryoutConversation:
    """The turns of one made-up conversation. The newest is the one that answers belong to."""

    def __init__(self) -> None:
        self.conversation = f"inspector-{uuid4().hex[:8]}"
        self._turns = count(0)
        self.turn: Turn | None = None

    async def begin_turn(self, mcpl: McplPeer, message: str, audit: Sequence[Json]) -> Json:
        """Begin a turn: what the model would read besides the message. `audit` tells why a hook gave nothing."""
        turn = self.turn = Turn(
            inference_id=f"inf_{uuid4().hex[:12]}",
            conversation_id=self.conversation,
            turn_index=next(self._turns),
            user_message=_check_length(message),
        )
        began, mark = time.perf_counter(), _last(audit)
        injections = await mcpl.before_inference(turn)
        took = (time.perf_counter() - began) * 1000
        gave = {each.feature_set for each in injections}
        silent = [one.name for one in mcpl.feature_sets.find_enabled_using(BEFORE_USE) if one.name not in gave]
        return {
            "turn": turn.turn_index,
            "conversation": turn.conversation_id,
            "ms": took,
            "injections": [
                {
                    "set": each.feature_set,
                    "position": each.position,
                    "namespace": each.namespace,
                    "content": encode_mcpl_content(each.content),
                    "metadata": {name: value for name, value in (each.metadata or {}).items() if name != "featureSet"},
                    "origin": each.origin,
                }
                for each in injections[:MAX_INJECTIONS]
            ],
            "silent": silent,
            "wants": mcpl.hooks.wants_before_inference,
            "problems": list(list_hook_problems(audit, mark, BEFORE_INFERENCE)),
        }

    async def end_turn(self, mcpl: McplPeer, answer: str, audit: Sequence[Json]) -> Json:
        """End the turn: the answer as the user would read it, and who changed it. Raises BadMessage without a turn."""
        if (turn := self.turn) is None:
            raise BadMessage("there is no turn to answer", fix="run the hooks of a message first")
        began, mark = time.perf_counter(), _last(audit)
        try:
            reviewed = await mcpl.after_inference(turn, _check_length(answer))
        except HookFailed as failed:
            return {"text": None, "ms": _since(began), "rewrites": [], "problems": [{"reason": str(failed)}]}
        rewrites, before = list[Json](), answer
        for each in reviewed.rewrites:
            changed = list(diff_words(before, each.text))
            rewrites.append({"set": each.feature_set, "changes": changed, "metadata": dict(each.metadata)})
            before = each.text
        return {
            "text": reviewed.text,
            "ms": _since(began),
            "rewrites": rewrites,
            "wants": mcpl.hooks.wants_after_inference,
            "blocking": mcpl.hooks.is_blocking,
            "problems": list(list_hook_problems(audit, mark, AFTER_INFERENCE)),
        }


def list_hook_problems(audit: Sequence[Json], mark: Json | None, method: str) -> Iterator[Json]:
    """What our own side wrote down since `mark` of hooks that failed, were too slow or said what they must not."""
    for event in takewhile(lambda each: each is not mark, reversed(audit)):
        if event.get("method") == method and event.get("outcome") != "success":
            reason = event.get("details", {}).get("reason", "")
            yield {"set": event.get("featureSet"), "outcome": event.get("outcome"), "reason": reason}


def _last(audit: Sequence[Json]) -> Json | None:
    return audit[-1] if audit else None


def diff_words(before: str, after: str) -> Iterator[tuple[str, str]]:
    """The way from one text to another, word by word: `same`, `del` and `ins`, each with its text."""
    old, new = _words(before), _words(after)
    if len(old) > MAX_WORDS or len(new) > MAX_WORDS:
        yield "same" if before == after else "ins", after
        return
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            yield "same", "".join(old[a:b])
            continue
        if b > a:
            yield "del", "".join(old[a:b])
        if d > c:
            yield "ins", "".join(new[c:d])


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|\s+|[^\w\s]", text)


def _since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


def _check_length(text: str) -> str:
    if len(text) > MAX_MESSAGE_LENGTH:
        raise BadMessage(f"a text of more than {MAX_MESSAGE_LENGTH:,} characters", fix="give a shorter one")
    return text
