"""{{ cookiecutter.description }}"""

import re

from defserve import Server, moderate, safe
from defserve.live import FinishedTurn, Injection, Turn

server = Server("{{ cookiecutter.project_slug }}")
retrieval = server.feature_set("memory.retrieval", "Recall what is known about what is being said")
extraction = server.feature_set("memory.extraction", "Learn from what is said")

# Kept while the process runs. Yours will be in a database.
facts: list[str] = []


@server.tool(title="Remember a fact")
@moderate(effects=["database"])
def remember(fact: str) -> str:
    """Remember a fact for later conversations.

    Args:
        fact: One sentence that can be understood by itself.
    """
    if fact not in facts:
        facts.append(fact)
    return "Remembered."


@server.tool(title="Recall facts")
@safe
def recall(about: str) -> list[str]:
    """Everything that is known about something.

    Args:
        about: The words to look for.
    """
    mentioned = words(about)
    return [fact for fact in facts if words(fact) & mentioned]


@retrieval.before_inference
def remind(turn: Turn) -> Injection | None:
    """Give the model what is known, before it answers."""
    found = recall(turn.user_message or "")
    return Injection("What you know:\n" + "\n".join(found)) if found else None


@extraction.after_inference
def learn(turn: FinishedTurn) -> None:
    """Take over what somebody asked to have remembered."""
    for fact in re.findall(r"remember that ([^.!?]+)", turn.user_message or "", re.IGNORECASE):
        remember(fact)


def words(text: str) -> set[str]:
    return set(re.findall(r"\w{4,}", text.lower()))


if __name__ == "__main__":
    server.main()
