"""{{ cookiecutter.description }}"""

from defserve import Server, moderate, safe
from defserve.live import Author, Channel, ReceivedMessage, everyone

server = Server("{{ cookiecutter.project_slug }}")
talking = server.feature_set("chat.room", "Listen and talk in the chat room", inbox=True)
rooms = server.channels("chat", feature_set=talking)

lobby = Channel("chat:lobby", "Lobby")
rooms.add(lobby)

# A room in this process. Yours will be somewhere else: connect to it in a lifespan.
said: list[str] = []


@rooms.publish
def say(channel: Channel, text: str) -> str:
    """Say in the room what the model has written; gives the id of the message."""
    said.append(f"model: {text}")
    return f"{channel.id}/{len(said)}"


@server.tool(title="Post a message")
@moderate(effects=["notification"])
async def post(author: str, text: str) -> str:
    """Say something in the room as one of the people there; whoever listens is told.

    Args:
        author: Who says it.
        text: What is said.
    """
    said.append(f"{author}: {text}")
    receipts = await rooms.incoming(ReceivedMessage(lobby, text, Author(author)), to=everyone)
    return f"Posted, and heard by {len(receipts)}."


@server.tool(title="Read what was said")
@safe
def transcript(last: int = 20) -> list[str]:
    """What was said in the room, the newest at the end.

    Args:
        last: How many lines to give back at most.
    """
    return said[-last:]


if __name__ == "__main__":
    server.main()
