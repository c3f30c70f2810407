"""Somebody else's server inside yours: only the tools that you want, with your names, and one argument fixed."""

import os
import sys
from pathlib import Path

from defserve import Command, Server
from defserve.extending import Argument, Transform

# Any server in any language: Command("npx", "-y", "some-server"), or Remote("https://wiki.example.org/mcp", token=…).
HANDBOOK = Command(
    sys.executable,
    Path(__file__).with_name("files.py"),
    env={"FILES_ROOT": os.environ.get("HANDBOOK", ".")},
    per="shared",
)

server = Server("desk", "1.0.0", instructions="The handbook answers questions about the office.")
server.mount(
    HANDBOOK,
    transform=Transform(
        only=["list_files", "read_file"],
        rename={"list_files": "list_pages", "read_file": "read_page"},
        describe={"list_files": "The pages of the office's handbook.", "read_file": "Read a page of the handbook."},
        arguments={"list_files": {"pattern": Argument(fixed="*.md")}, "read_file": {"path": Argument(name="page")}},
    ),
    timeout=10,
)


if __name__ == "__main__":
    server.main()
