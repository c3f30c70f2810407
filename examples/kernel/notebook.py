"""Context management (MGP §10.1): what a conversation no longer has room for is kept here, and found again."""

from defserve import Server, ToolError, moderate, safe

server = Server("notebook", "1.0.0")
notes: dict[str, str] = {}


@server.tool
@moderate("memory.write")
def remember(topic: str, text: str) -> str:
    """Keep a text under a topic."""
    notes[topic] = text
    return f"{len(notes)} topics are kept"


@server.tool
@safe("memory.read")
def recall(topic: str) -> str:
    """The text that is kept under a topic."""
    if topic not in notes:
        raise ToolError(f"nothing is kept about {topic!r}; known are {', '.join(notes) or 'no topics'}")
    return notes[topic]


if __name__ == "__main__":
    server.main()
