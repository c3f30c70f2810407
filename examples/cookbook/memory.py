"""A memory for any host that speaks MCPL: before each inference, the model reads what is known about the subject."""

import os
import re
from typing import Annotated

from pydantic import BaseModel

from defserve import Server, State
from defserve.live import Injection, Turn

server = Server("memory", "1.0.0", store=os.environ.get("MEMORY_STORE", "sqlite:///memory.db"))
memory = server.feature_set("memory.facts", "Remembers facts and recalls them when they matter")


class Facts(BaseModel):
    facts: list[str] = []


kept = memory.state(Facts)


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w{4,}", text.lower()))


@memory.tool
def remember(fact: Annotated[str, "One sentence that is true on its own."], mine: State[Facts]) -> str:
    """Remember a fact for later conversations."""
    if fact not in mine.facts:
        mine.facts.append(fact)
    return f"Facts stored: {len(mine.facts)}"


@memory.tool
def forget(words: Annotated[str, "A part of each fact that goes."], mine: State[Facts]) -> str:
    """Forget every fact that contains these words."""
    left = [fact for fact in mine.facts if words.lower() not in fact.lower()]
    forgotten, mine.facts = len(mine.facts) - len(left), left
    return f"{forgotten} forgotten"


@memory.before_inference(positions=["before_user"])
async def recall(turn: Turn) -> Injection | None:
    asked = words_of(turn.user_message or "")
    found = [fact for fact in (await kept.at()).facts if words_of(fact) & asked][-10:]
    if not found:
        return None
    return Injection("Facts that the user asked to remember:\n- " + "\n- ".join(found), position="before_user")


if __name__ == "__main__":
    server.main()
