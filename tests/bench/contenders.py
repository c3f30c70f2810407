"""Who runs: the servers compared, in the order of a round."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

SERVERS = Path(__file__).parent / "servers"
NODE = ".cjs"


class Contender(NamedTuple):
    """One server script. `kinds` are the ways it can run a tool; `handshake_only` ones know no stateless era.

    Its modules come from `paths` before anywhere else. Scripts for Node end with `.cjs`.
    """

    name: str
    script: Path
    kinds: tuple[str, ...]
    handshake_only: bool = False
    paths: tuple[Path, ...] = ()

    @property
    def needs_node(self) -> bool:
        return self.script.suffix == NODE


class HttpContender(NamedTuple):
    """One server script over HTTP, given its port and then `arguments`; `paths` as above."""

    name: str
    script: Path
    arguments: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()

    @property
    def needs_node(self) -> bool:
        return self.script.suffix == NODE


FLOOR = Contender("floor", SERVERS / "floor_server.py", ("async", "sync", "inline"), handshake_only=True)
SDK = Contender("sdk", SERVERS / "sdk_server.py", ("async", "sync"))
FASTMCP = Contender("fastmcp", SERVERS / "fastmcp_server.py", ("async", "sync", "inline"))
TYPESCRIPT = Contender("typescript", SERVERS / "typescript_server.cjs", ("async",))
DEFSERVE = Contender("defserve", SERVERS / "defserve_server.py", ("async", "sync", "inline"))

CONTENDERS = (FLOOR, SDK, FASTMCP, TYPESCRIPT, DEFSERVE)
HTTP_CONTENDERS = (
    HttpContender("raw", SERVERS / "raw_http.py"),
    HttpContender("bare", SERVERS / "bare_http.py"),
    HttpContender("sdk", SERVERS / "sdk_http.py"),
    HttpContender("sdk json", SERVERS / "sdk_http.py", ("json",)),
    HttpContender("fastmcp", SERVERS / "fastmcp_http.py"),
    HttpContender("fastmcp json", SERVERS / "fastmcp_http.py", ("json",)),
    HttpContender("typescript", SERVERS / "typescript_http.cjs"),
    HttpContender("typescript json", SERVERS / "typescript_http.cjs", ("json",)),
    HttpContender("defserve", SERVERS / "defserve_http.py"),
)
TYPEADAPTER = SERVERS / "typeadapter_process.py"
