"""A model made of rules, which answers sampling while nobody wants to type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from defserve.host.fields import object_of
from defserve.inspector.protocol import BadMessage, Json
from defserve.wire.jsonvalue import is_array

MOST_RULES: Final = 50
LONGEST: Final = 20_000


class Rule(NamedTuple):
    """What is said if the newest message has the text `when`, in any case of letters. An empty `when` always fits."""

    when: str
    say: str


class ScriptedAnswers:
    """Rules that the person has written. Nothing is answered while it is not switched on."""

    def __init__(self) -> None:
        self.on = False
        self.rules: list[Rule] = []

    def set(self, on: bool, rules: Sequence[Any]) -> None:
        """Take new rules, objects with `when` and `say`. Raises BadMessage if one is something else, or too long."""
        read = [object_of(rule) for rule in rules]
        texts = [text for rule in read for text in (rule.get("when", ""), rule.get("say"))]
        if len(rules) > MOST_RULES or not all(isinstance(text, str) and len(text) <= LONGEST for text in texts):
            raise BadMessage(
                "these are not rules for a model",
                fix=f"give at most {MOST_RULES} rules with the texts `when` and `say`, each below {LONGEST} characters",
            )
        self.on, self.rules = on, [Rule(rule.get("when", ""), rule["say"]) for rule in read]

    def answer(self, params: Json) -> str | None:
        """What the first rule that fits says; None if none does, or the model is switched off."""
        if not self.on:
            return None
        asked = newest_text(params).casefold()
        return next((rule.say for rule in self.rules if rule.when.casefold() in asked), None)

    def wire(self) -> Json:
        return {"on": self.on, "rules": [rule._asdict() for rule in self.rules]}


def newest_text(params: Json) -> str:
    """The texts of the last message of a sampling request."""
    messages = params.get("messages")
    last = object_of(messages[-1]) if is_array(messages) and messages else {}
    content = last.get("content")
    blocks = content if is_array(content) else [content]
    return "\n".join(str(object_of(block).get("text", "")) for block in blocks)
