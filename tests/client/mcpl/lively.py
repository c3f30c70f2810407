"""A server that takes part in everything, for hosts in other processes, too."""

from __future__ import annotations

from dataclasses import dataclass

from defserve import Context, Server
from defserve.protocols.mcpl.channels.messages import Author, Channel, ReceivedMessage
from defserve.protocols.mcpl.content import FinishedTurn, Injection, Rewrite, Turn
from defserve.protocols.mcpl.vocabulary import ChannelOpenFailed

server = Server("lively", "1.0")
memory = server.feature_set("memory.retrieval", "Retrieve memories")
redaction = server.feature_set("compliance.redaction", "Redact secrets")
reminders = server.feature_set("memory.proactive", "Surface reminders", uses=["pushEvents"])
thinking = server.feature_set("memory.consolidation", "Summarise", uses=["inferenceRequest"], model_info=True)
files = server.feature_set("files.edit", "Edit files", scoped=True)
chatting = server.feature_set("chat.post", "Chat", scoped=True)
chat = server.channels("chat", feature_set=chatting)
heard: list[str] = []


@dataclass
class Room:
    room: str


@memory.before_inference
def recall(turn: Turn) -> list[Injection]:
    return [Injection(f"After: {turn.user_message}", "after_user"), Injection(f"Turn {turn.turn_index}")]


@redaction.after_inference(blocking=True)
def redact(turn: FinishedTurn) -> Rewrite | None:
    words = turn.assistant_message.replace("sk-123", "[REDACTED]")
    return Rewrite(words, metadata={"redactions": 1}) if words != turn.assistant_message else None


@server.tool
async def remind(text: str, id: str) -> str:
    """Push an event to who calls."""
    receipt = await reminders.push(text, id=id)
    return f"{receipt.accepted} {receipt.inference_id or receipt.reason}"


@server.tool
async def summarise(text: str, bit_by_bit: bool = False) -> list[str]:
    """Let the host's model summarise."""
    if not bit_by_bit:
        return [(await thinking.infer(text)).content]
    stream = thinking.infer_stream(text)
    return [*[delta async for delta in stream], stream.result.content]


@server.tool
async def model(ctx: Context) -> str:
    """Which model the host has."""
    return (await ctx.model_info()).id


@files.tool(scope=lambda path: path)
async def edit(path: str, ctx: Context) -> str:
    """Edit a file."""
    assert ctx.scope is not None
    return f"{path} {ctx.scope.payload}"


@chat.open
async def join(address: Room) -> Channel:
    if address.room == "closed":
        raise ChannelOpenFailed("this room is closed")
    return Channel(f"chat:{address.room}", address.room, address=address)


@chat.close
async def leave(channel: Channel) -> None:
    heard.append(f"left {channel.id}")


@chat.publish
async def send(channel: Channel, text: str) -> str:
    heard.append(f"{channel.id}: {text}")
    return f"m_{len(heard)}"


@chat.observe
async def watch(channel: Channel, text: str) -> None:
    heard.append(f"{channel.id} saw {text}")


@server.tool
async def listen() -> list[str]:
    """What was heard so far."""
    return heard


@server.tool
async def say(room: str, text: str) -> str:
    """Let something come in on a channel."""
    (receipt,) = await chat.incoming([ReceivedMessage(f"chat:{room}", text, Author("u_1", "Alice"), id="m_1")])
    return f"{receipt.accepted} {receipt.conversation_id}"


if __name__ == "__main__":
    server.run("stdio:")
