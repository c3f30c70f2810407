"""A connector: the host hears what people write in a chat room, and what the host says appears in the room."""

import asyncio
import os
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from defserve import Context, Refused, Server
from defserve.errors import PeerError
from defserve.live import Author, Channel, ReceivedMessage, everyone


@asynccontextmanager
async def lifespan(server: Server) -> AsyncGenerator[StreamWriter]:
    """A connection to the chat, a line a message: `Ada: Hello!`"""
    host, _, port = os.environ.get("CHAT_ADDRESS", "127.0.0.1:6789").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    listening = asyncio.create_task(listen(reader))
    try:
        yield writer
    finally:
        listening.cancel()
        writer.close()


server = Server("chat", "1.0.0", lifespan=lifespan)
talking = server.feature_set("chat.room", "Read and write in the chat room", inbox=True)
rooms = server.channels("chat", feature_set=talking)
room = Channel("chat:room", "The chat room")
rooms.add(room)


async def listen(reader: StreamReader) -> None:
    async for line in reader:
        name, _, text = line.decode(errors="replace").rstrip().partition(": ")
        with suppress(PeerError, Refused):  # nobody wants to hear it
            await rooms.incoming(ReceivedMessage(room, text, Author(name)), to=everyone)


@rooms.publish
async def say(channel: Channel, text: str, ctx: Context) -> None:
    writer: StreamWriter = ctx.lifespan
    writer.write(" ".join(text.splitlines()).encode() + b"\n")
    await writer.drain()


if __name__ == "__main__":
    server.main()
