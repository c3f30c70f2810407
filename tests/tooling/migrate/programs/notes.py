"""Resources, templates and prompts."""

from fastmcp import FastMCP
from fastmcp.prompts import Message

mcp = FastMCP(name="Notes", instructions="Reads notes.")

NOTES = {"tea": "Buy tea.", "cake": "Bake a cake."}


@mcp.resource("notes://all", mime_type="text/plain", tags={"index"})
def all_notes() -> str:
    """Every note's name."""
    return ", ".join(NOTES)


@mcp.resource("notes://{name}", description="One note.")
def note(name: str) -> str:
    return NOTES[name]


@mcp.prompt
def summarize(name: str, words: int = 10) -> str:
    """Ask for a summary."""
    return f"Summarize {name} in {words} words."


@mcp.prompt("dialogue", tags={"chat"})
def talk(topic: str) -> list[Message]:
    return [
        Message(f"Tell me about {topic}."),
        Message("What do you know already?", role="assistant"),
    ]


if __name__ == "__main__":
    mcp.run(transport="stdio")
