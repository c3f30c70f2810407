"""A connector (MCPL §14): rooms of a chat as channels of a host. The chat is a small TCP server that comes along.

Everybody has the lobby; a host opens other rooms for itself. To take part by hand, ask the tool `chat_address` where
the chat is, then: `nc HOST PORT`, `JOIN lobby Alice`, and talk.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from pydantic import BaseModel, Field

from defserve import Context, Refused, Server
from defserve.errors import PeerError
from defserve.live import Author, Channel, ReceivedMessage, To, everyone

# -- the chat, which knows nothing of channels -----------------------------------------------------------


class Chat:
    """Rooms. A line `JOIN room name` comes first, every other line is said in that room."""

    def __init__(self) -> None:
        self.rooms: dict[str, set[StreamWriter]] = defaultdict(set)

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        match (await reader.readline()).decode().split():
            case ["JOIN", room, name]:
                writer.write(f"JOINED {room}\n".encode())
                await self.talk(room, name, reader, writer)
            case _:
                writer.write(b"JOIN room name\n")
        await hang_up(writer)

    async def talk(self, room: str, name: str, reader: StreamReader, writer: StreamWriter) -> None:
        people = self.rooms[room]
        people.add(writer)
        async for line in reader:
            for other in people - {writer}:
                other.write(f"{name}: ".encode() + line)
        people.discard(writer)

    async def close(self) -> None:
        for writer in [writer for people in self.rooms.values() for writer in people]:
            await hang_up(writer)


async def hang_up(writer: StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def lifespan(server: Server) -> AsyncGenerator[str]:
    """The chat runs while the server does; what is yielded is where."""
    chat = Chat()
    async with await asyncio.start_server(chat.serve, "127.0.0.1", 0) as service:
        host, port = service.sockets[0].getsockname()
        members[None, lobby.id] = await Member.join(f"{host}:{port}", lobby, "lobby", to=everyone)
        yield f"{host}:{port}"
        for member in list(members.values()):
            await member.leave()
        members.clear()
        await chat.close()


# -- the connector ---------------------------------------------------------------------------------------

server = Server("chat", "1.0.0", lifespan=lifespan)
talking = server.feature_set("chat.rooms", "Read and write in chat rooms", scoped=True, inbox=True)
rooms = server.channels("chat", feature_set=talking)
lobby = Channel("chat:lobby", "Lobby")
rooms.add(lobby)

# By the session that opened the room; the lobby is everybody's.
members: dict[tuple[object, str], "Member"] = {}


class Room(BaseModel):
    room: str = Field(pattern=r"^[a-z0-9-]{1,32}$")


class Member:
    """Our place in one room: says what a host publishes, and delivers what the others say."""

    def __init__(self, channel: Channel, to: To, reader: StreamReader, writer: StreamWriter) -> None:
        self.channel, self.to, self.reader, self.writer = channel, to, reader, writer
        self.said = 0
        self.listening = asyncio.create_task(self.listen())

    @classmethod
    async def join(cls, address: str, channel: Channel, room: str, to: To) -> "Member":
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(f"JOIN {room} agent\n".encode())
        await reader.readline()
        return cls(channel, to, reader, writer)

    async def listen(self) -> None:
        async for line in self.reader:
            name, _, text = line.decode().rstrip("\n").partition(": ")
            with suppress(PeerError, Refused):  # then nobody wants to hear it
                await rooms.incoming(ReceivedMessage(self.channel, text, Author(name)), to=self.to)

    async def say(self, text: str) -> str:
        self.writer.write(text.replace("\n", " ").encode() + b"\n")
        await self.writer.drain()
        self.said += 1
        return f"{self.channel.id}/{self.said}"

    async def leave(self) -> None:
        self.listening.cancel()
        await hang_up(self.writer)


@rooms.open(scope=lambda address: f"chat:{address.room}")
async def join(address: Room, ctx: Context) -> Channel:
    channel = Channel(f"chat:{address.room}", f"Room {address.room}", address=address)
    members[ctx.session, channel.id] = await Member.join(ctx.lifespan, channel, address.room, to=ctx.session)
    return channel


@rooms.publish
async def say(channel: Channel, text: str, ctx: Context) -> str:
    member = members.get((ctx.session, channel.id)) or members[None, channel.id]
    return await member.say(text)


@rooms.close
async def leave(channel: Channel, ctx: Context) -> None:
    member = members.pop((ctx.session, channel.id), None)
    if member is not None:
        await member.leave()


@server.tool
def chat_address(ctx: Context) -> str:
    """Where the chat is, for those who want to take part by hand."""
    return ctx.lifespan


if __name__ == "__main__":
    server.main()
