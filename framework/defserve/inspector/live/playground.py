"""One turn without a model: what the hooks of a server put into a prompt, and what they make of an answer."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import count, takewhile
from typing import Final
from uuid import uuid4

from defserve.host.mcpl.hooks import AFTER, BEFORE
from defserve.host.mcpl.peer import McplPeer
from defserve.inspector.protocol import BadMessage, Json
from defserve.protocols.mcpl.content import blocks
from defserve.protocols.mcpl.errors import HookFailed
from defserve.protocols.mcpl.turns import Turn

LONGEST_MESSAGE: Final = 100_000
MOST_WORDS: Final = 4_000
"""Longer answers are shown whole, without marks of what changed."""
MOST_INJECTIONS: Final = 200
BEFORE_USE: Final = "contextHooks.beforeInference"
AFTER_USE: Final = "contextHooks.afterInference"


class Playground:
    """The turns of one made-up conversation. The newest is the one that answers belong to."""

    def __init__(self) -> None:
        self.conversation = f"inspector-{uuid4().hex[:8]}"
        self._turns = count(0)
        self.turn: Turn | None = None

    async def before(self, mcpl: McplPeer, message: str, audit: Sequence[Json]) -> Json:
        """Begin a turn: what the model would read besides the message. `audit` tells why a hook gave nothing."""
        turn = self.turn = Turn(
            inference_id=f"inf_{uuid4().hex[:12]}",
            conversation_id=self.conversation,
            turn_index=next(self._turns),
            user_message=_checked(message),
        )
        began, mark = time.perf_counter(), _last(audit)
        injections = await mcpl.before_inference(turn)
        took = (time.perf_counter() - began) * 1000
        gave = {each.feature_set for each in injections}
        silent = [one.name for one in mcpl.feature_sets.using(BEFORE_USE) if one.name not in gave]
        return {
            "turn": turn.turn_index,
            "conversation": turn.conversation_id,
            "ms": took,
            "injections": [
                {
                    "set": each.feature_set,
                    "position": each.position,
                    "namespace": each.namespace,
                    "content": blocks(each.content),
                    "metadata": {name: value for name, value in (each.metadata or {}).items() if name != "featureSet"},
                    "origin": each.origin,
                }
                for each in injections[:MOST_INJECTIONS]
            ],
            "silent": silent,
            "wants": mcpl.hooks.wants_before,
            "problems": list(problems(audit, mark, BEFORE)),
        }

    async def after(self, mcpl: McplPeer, answer: str, audit: Sequence[Json]) -> Json:
        """End the turn: the answer as the user would read it, and who changed it. Raises BadMessage without a turn."""
        if (turn := self.turn) is None:
            raise BadMessage("there is no turn to answer", fix="run the hooks of a message first")
        began, mark = time.perf_counter(), _last(audit)
        try:
            reviewed = await mcpl.after_inference(turn, _checked(answer))
        except HookFailed as failed:
            return {"text": None, "ms": _since(began), "rewrites": [], "problems": [{"reason": str(failed)}]}
        rewrites, before = list[Json](), answer
        for each in reviewed.rewrites:
            changed = list(difference(before, each.text))
            rewrites.append({"set": each.feature_set, "changes": changed, "metadata": dict(each.metadata)})
            before = each.text
        return {
            "text": reviewed.text,
            "ms": _since(began),
            "rewrites": rewrites,
            "wants": mcpl.hooks.wants_after,
            "blocking": mcpl.hooks.is_blocking,
            "problems": list(problems(audit, mark, AFTER)),
        }


def problems(audit: Sequence[Json], mark: Json | None, method: str) -> Iterator[Json]:
    """What our own side wrote down since `mark` of hooks that failed, were too slow or said what they must not."""
    for event in takewhile(lambda each: each is not mark, reversed(audit)):
        if event.get("method") == method and event.get("outcome") != "success":
            reason = event.get("details", {}).get("reason", "")
            yield {"set": event.get("featureSet"), "outcome": event.get("outcome"), "reason": reason}


def _last(audit: Sequence[Json]) -> Json | None:
    return audit[-1] if audit else None


def difference(before: str, after: str) -> Iterator[tuple[str, str]]:
    """The way from one text to another, word by word: `same`, `del` and `ins`, each with its text."""
    old, new = _words(before), _words(after)
    if len(old) > MOST_WORDS or len(new) > MOST_WORDS:
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


def _checked(text: str) -> str:
    if len(text) > LONGEST_MESSAGE:
        raise BadMessage(f"a text of more than {LONGEST_MESSAGE:,} characters", fix="give a shorter one")
    return text
