"""Commands of strangers, on your machine: judged by their type, run without a shell, an environment or endless time.

A command that is not on the list never reaches the function. Who may call `run` at all: a local or authenticated
client, after somebody has confirmed it; a stranger on the network only after an operator granted `shell.execute`.
"""

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from typing import Annotated

from pydantic import Field

from defserve import Server, Shell, ShellCommand, ToolError, dangerous, moderate

server = Server("shell", "1.0.0")

Work = Annotated[ShellCommand, Shell(allowed={"echo": None, "sleep": None, "mkdir": None, "git": ["status", "log"]})]
Look = Annotated[ShellCommand, Shell(mode="readonly")]
Seconds = Annotated[float, Field(gt=0, le=60)]


@server.tool
@dangerous("shell.execute", effects=["process", "filesystem"])
async def run(command: Work, seconds: Seconds = 10) -> str:
    """Run a command that is on the list."""
    return await output(command, seconds)


@server.tool
@moderate("filesystem.read")
async def look(command: Look, seconds: Seconds = 10) -> str:
    """Run any command that only reads."""
    return await output(command, seconds)


async def output(command: ShellCommand, seconds: float) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *command.argv, env=command.env, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
        )
    except FileNotFoundError:
        raise ToolError(f"{command.argv[0]} is not installed here") from None
    try:
        async with asyncio.timeout(seconds):
            printed, _ = await process.communicate()
    except TimeoutError:
        raise ToolError(f"not done within {seconds:g} s: ask for less, or give it more time") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise ToolError(f"{command.argv[0]} ended with {process.returncode}: {printed.decode(errors='replace')}")
    return printed.decode(errors="replace")


if __name__ == "__main__":
    server.main()
