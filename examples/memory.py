"""Memory (MCPL §15.1): what is remembered is read before inference, learned after it, summarised, and brought up.

Four feature sets, so that a host can take one without the others. The memories are kept while the process runs.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

from defserve import Server
from defserve.live import Event, FinishedTurn, Injection, Turn

server = Server("memory", "1.0.0")
retrieval = server.feature_set("memory.retrieval", "Retrieve relevant memories")
extraction = server.feature_set("memory.extraction", "Learn from conversations")
consolidation = server.feature_set("memory.consolidation", "Summarize memories using AI", uses=["inferenceRequest"])
proactive = server.feature_set("memory.proactive", "Surface reminders proactively")


@dataclass
class Memory:
    id: str
    about: str
    text: str


@dataclass
class Reminder:
    id: str
    memory_id: str
    due: datetime
    text: str


memories = [
    Memory("mem_a1", "mannequin project", "Scaling mannequin installation to 8-10 units."),
    Memory("mem_a2", "mannequin project", "DMX lighting, X32 audio routing."),
    Memory("mem_followup", "Alice", "Follow up with Alice."),
]
reminders = [
    Reminder(
        "evt_reminder_001",
        "mem_followup",
        datetime(2026, 1, 23, 14, tzinfo=UTC),
        "You mentioned following up with Alice today",
    )
]


def relevant(text: str) -> list[Memory]:
    """The memories about something that is mentioned."""
    mentioned = words(text)
    return [memory for memory in memories if words(memory.about) & mentioned]


def words(text: str) -> set[str]:
    return set(re.findall(r"\w{4,}", text.lower()))


@retrieval.before_inference
async def recall(turn: Turn) -> Injection | None:
    found = relevant(turn.user_message or "")
    if not found:
        return None
    text = " ".join(memory.text for memory in found)
    return Injection(f"<memories>\n{text}\n</memories>", metadata={"memoryIds": [memory.id for memory in found]})


@extraction.after_inference
async def learn(turn: FinishedTurn) -> None:
    for fact in re.findall(r"remember that ([^.!?]+)", turn.user_message or "", re.IGNORECASE):
        memories.append(Memory(f"mem_{len(memories) + 1}", fact, f"{fact[0].upper()}{fact[1:]}."))


@server.tool
async def consolidate(about: str, conversation: str | None = None) -> str:
    """Replace all that is remembered about something by a summary, which the host's model writes."""
    found = relevant(about)
    facts = " ".join(memory.text for memory in found)
    summary = await consolidation.infer(
        f"Summarize these memories: {facts}", conversation=conversation, max_tokens=500, temperature=0.7
    )
    for memory in found:
        memories.remove(memory)
    memories.append(Memory(f"mem_{len(memories) + 1}", about, str(summary)))
    return str(summary)


@proactive.events
async def due() -> AsyncIterator[Event]:
    for reminder in sorted(reminders, key=lambda reminder: reminder.due):
        await asyncio.sleep(max(0.0, (reminder.due - datetime.now(UTC)).total_seconds()))
        origin = {"server": server.name, "memoryId": reminder.memory_id}
        yield Event(reminder.text, id=reminder.id, origin=origin, timestamp=reminder.due)


if __name__ == "__main__":
    server.main()
