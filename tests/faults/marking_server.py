"""A server behind a kernel: each call leaves a line in a file, so that calls that ran can be counted."""

from __future__ import annotations

import os

from defserve import Server

server = Server("marking")


@server.tool
def mark(token: str) -> str:
    """Leave a line."""
    file = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{token}\n".encode())
    finally:
        os.close(file)
    return token


@server.tool
def pid() -> str:
    """The process that answers."""
    return str(os.getpid())


if __name__ == "__main__":
    server.run()
