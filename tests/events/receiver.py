"""A receiver of webhooks as a process: it writes down what came, then acknowledges it. It may be killed at any moment.

python -m tests.events.receiver PORT FILE SECRET DELAY
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from defserve.protocols.mcp.events.sending import parse_webhook_secret, verify_webhook


class Receiver:
    """`file` gets a line for each event: its id, the id in the header, the subscription. `delay` makes it slow."""

    def __init__(self, file: str, secret: str, delay: float) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._key, self._delay = parse_webhook_secret(secret), delay

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode("latin-1").split("\r\n")[1:-2]
                headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
                body = await reader.readexactly(int(headers["content-length"]))
                answer = json.dumps(await self._receive(headers, body)).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _receive(self, headers: dict[str, str], body: bytes) -> dict[str, str]:
        id = verify_webhook([self._key], headers, body, time.time())
        message = json.loads(body)
        if message.get("type") == "verification":
            return {"challenge": message["challenge"]}
        if self._delay:
            await asyncio.sleep(self._delay)
        name = message.get("eventId") or message["type"]
        os.write(self._file, f"{name} {id} {headers['x-mcp-subscription-id']} {time.time()}\n".encode())
        return {}


async def main(port: int, file: str, secret: str, delay: float) -> None:
    receiver = Receiver(file, secret, delay)
    server = await asyncio.start_server(receiver.serve_connection, "127.0.0.1", port)
    print("up", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])))
