"""A few git commands in one repository: judged before they run, without a shell, bounded in time and in output."""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from pathlib import Path
from typing import Annotated

from defserve import Server, Shell, ShellCommand, ToolError, moderate

REPOSITORY = str(Path(os.environ.get("REPOSITORY", ".")).resolve())
SECONDS = 20
LONGEST = 50_000  # characters

server = Server("repository", "1.0.0")
# None: ls with any arguments that the guard knows to be harmless.
LISTED = {"git": ["status", "log", "diff", "show"], "ls": None}
Command = Annotated[ShellCommand, Shell(allowed=LISTED, root=REPOSITORY, only_root=True)]


@server.tool(timeout=SECONDS + 5)
@moderate("shell.execute", effects=["process"])
async def run_command(command: Command) -> str:
    """Run a command that only looks: git status, log, diff or show, or ls.

    Args:
        command: One command, without pipes, such as: git log --oneline -5
    """
    process = await asyncio.create_subprocess_exec(
        *command.argv, cwd=REPOSITORY, env=command.env, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
    )
    try:
        async with asyncio.timeout(SECONDS):
            printed, _ = await process.communicate()
    except TimeoutError:
        raise ToolError(f"It was not done within {SECONDS} seconds. Ask for less.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = printed.decode(errors="replace")
    if process.returncode:
        raise ToolError(f"It ended with {process.returncode}: {text[:LONGEST]}")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n… and {len(text) - LONGEST} more characters"


if __name__ == "__main__":
    server.main()
