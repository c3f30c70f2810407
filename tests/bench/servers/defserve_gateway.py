"""defserve's gateway as its command starts it, with a participant for every connection and no bound on their rate."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from defserve.cli.commands.gateway import main

# The clients answer no pings.
HEAD = 'profile = "full"\n[limits]\nrate = 1e9\nburst = 1000000000\nping = 3600\n'

if __name__ == "__main__":
    port, participants = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gateway.toml"
        people = "".join(f'[participants.p{each}]\ntoken = "t-{each}"\n' for each in range(participants))
        file.write_text(HEAD + people)
        sys.exit(main(["--on", f"ws://127.0.0.1:{port}/ws", "--config", str(file)]))
