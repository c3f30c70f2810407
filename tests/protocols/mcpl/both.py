"""One server program for hosts of both versions: hooks, push, inference, channels and state, each in its own set."""

from __future__ import annotations

from pydantic import BaseModel

from defserve import Context, Server, State
from defserve.live import Author, Channel, FinishedTurn, InferenceEnd, Injection, ReceivedMessage, Turn

server = Server("both", "1.0")
retrieval = server.feature_set("memory.retrieval", "Retrieve memories")
review = server.feature_set("memory.review", "Review answers")
usage = server.feature_set("memory.usage", "Count tokens")
alerts = server.feature_set("alerts.push", "Push alerts", uses=["pushEvents"])
writing = server.feature_set("text.write", "Write", uses=["inferenceRequest.streaming"], model_info=True)
chatting = server.feature_set("chat.rooms", "Chat")
notes = server.feature_set("notes.keep", "Keep notes")
chat = server.channels("chat", feature_set=chatting)
chat.add(Channel("chat:lobby", "Lobby"))
heard: list[str] = []


class Notebook(BaseModel):
    lines: list[str] = []


notes.state(Notebook, per="session", mode="data")


@retrieval.before_inference(positions=["before_user"])
async def recall(turn: Turn) -> Injection:
    return Injection(f"about {turn.user_message}", "before_user")


@review.after_inference(blocking=True)
async def shout(turn: FinishedTurn) -> str:
    return turn.assistant_message.upper()


@usage.inference_ended
async def count(end: InferenceEnd) -> None:
    heard.append(f"{end.inference_id} {end.phase} {end.usage.output_tokens if end.usage else None}")


@alerts.tool
async def alert(text: str) -> str:
    receipt = await alerts.push(text, id="evt_1", timestamp="2026-01-23T14:00:00Z", tags=["acme:alert", "chat:mention"])
    return f"{receipt.accepted}"


@writing.tool
async def write(prompt: str) -> str:
    stream = writing.infer_stream(prompt)
    return "|".join([*[delta async for delta in stream], stream.result.content])


@writing.tool
async def model(ctx: Context) -> str:
    return (await ctx.model_info()).id


@chat.publish
async def publish(channel: Channel, text: str) -> str:
    heard.append(f"{channel.id} {text}")
    return "m_1"


@chat.observe
async def observe(channel: Channel, text: str) -> None:
    heard.append(f"{channel.id} saw {text}")


@chatting.tool
async def say(text: str) -> str:
    message = ReceivedMessage(
        "chat:lobby", text, Author("u1", "Ann"), id="m_2", timestamp="2026-01-23T14:00:00Z", tags=["chat:dm"]
    )
    (receipt,) = await chat.incoming(message)
    return f"{receipt.accepted}"


@notes.tool
async def note(line: str, book: State[Notebook]) -> str:
    book.lines.append(line)
    return f"{len(book.lines)}"


@server.tool
async def listen() -> str:
    return "|".join(heard)


if __name__ == "__main__":
    server.run("stdio:")
