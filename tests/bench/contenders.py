"""Who runs: the servers compared, in the order of a round."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

SERVERS = Path(__file__).parent / "servers"


class Contender(NamedTuple):
    """One server script. `kinds` are the ways it can run a tool; `handshake_only` ones know no stateless era."""

    name: str
    script: Path
    kinds: tuple[str, ...]
    handshake_only: bool = False


FLOOR = Contender("floor", SERVERS / "floor_server.py", ("async", "sync", "inline"), handshake_only=True)
SDK = Contender("sdk", SERVERS / "sdk_server.py", ("async", "sync"))
FASTMCP = Contender("fastmcp", SERVERS / "fastmcp_server.py", ("async", "sync", "inline"))
DEFSERVE = Contender("defserve", SERVERS / "defserve_server.py", ("async", "sync", "inline"))

CONTENDERS = (FLOOR, SDK, FASTMCP, DEFSERVE)
TYPEADAPTER = SERVERS / "typeadapter_process.py"
