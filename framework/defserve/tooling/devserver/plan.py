"""What the parent tells its child: what to serve and how, as one JSON argument."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

READY = b"ready\n"
"""What a child on a socket writes to its standard output when it serves."""


@dataclass(frozen=True, slots=True)
class ServePlan:
    """`options` are those of `Server.run`, `sockets` the inherited file descriptors.

    The child writes the names of its source files to the file `report`, and how clients set up their sessions into the
    folder `sessions`. The file `local_key` holds the local token: on the command line other users would see it.
    """

    target: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    report: str = ""
    sockets: tuple[int, ...] = ()
    sessions: str = ""
    local_key: str = ""

    def written(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> ServePlan:
        given = json.loads(text)
        given["sockets"] = tuple(given["sockets"])
        return cls(**given)
