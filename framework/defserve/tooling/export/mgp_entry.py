"""The entry of a server in `mgp.toml` (MGP §15.2): what a kernel knows about it before it connects."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from defserve.errors import UsageError
from defserve.host.clients.server_names import checked_server_id
from defserve.wire.jsonvalue import is_array


def mgp_entry(
    info: Mapping[str, Any],
    mgp: Mapping[str, Any],
    *,
    command: Sequence[str] = (),
    url: str = "",
    env: Sequence[str] = (),
) -> str:
    """The entry as TOML. `mgp` is what the server says at `initialize`; if it is empty, the section is left out.

    `env` names the variables that the server needs. The kernel fills them in. Raises UsageError for a server or a
    variable that cannot have its name there.
    """
    for name in env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"--env {name[:60]!r} is not the name of a variable", fix="write --env NAME")
    sections: dict[str, Mapping[str, Any]] = {
        "[[servers]]": {
            "id": checked_server_id(str(mgp.get("server_id") or info.get("name") or "server")),
            **({"url": url} if url else {"command": command[0], "args": list(command[1:])}),
            "transport": "http" if url else "stdio",
        },
        "[servers.mgp]": {
            name: mgp[name] for name in ("extensions", "permissions_required", "trust_level") if name in mgp
        },
        "[servers.env]": {name: f"${{{name}}}" for name in env},
    }
    written = [
        "\n".join([heading, *(f"{name} = {toml_value(value)}" for name, value in members.items())])
        for heading, members in sections.items()
        if members
    ]
    return "\n\n".join(written) + "\n"


def toml_value(value: Any) -> str:
    """A text, or a list of texts, as TOML. A text may also stand before the `=`."""
    if is_array(value):
        return f"[{', '.join(map(toml_value, value))}]"
    # A JSON string is a TOML string, except for the one control character that JSON does not escape.
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
