"""The entry of a server in `mgp.toml` (MGP §15.2): what a kernel knows about it before it connects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from defserve.wire.jsonvalue import is_array


def mgp_entry(
    info: Mapping[str, Any],
    mgp: Mapping[str, Any],
    *,
    command: Sequence[str] = (),
    url: str = "",
    env: Iterable[str] = (),
) -> str:
    """The entry as TOML. `mgp` is what the server says at `initialize`; if it is empty, the section is left out.

    `env` names the variables that the server needs. The kernel fills them in.
    """
    sections: dict[str, Mapping[str, Any]] = {
        "[[servers]]": {
            "id": mgp.get("server_id") or info.get("name") or "server",
            **({"url": url} if url else {"command": command[0], "args": list(command[1:])}),
            "transport": "http" if url else "stdio",
        },
        "[servers.mgp]": {
            name: mgp[name] for name in ("extensions", "permissions_required", "trust_level") if name in mgp
        },
        "[servers.env]": {name: f"${{{name}}}" for name in env},
    }
    written = [
        "\n".join([heading, *(f"{name} = {_value(value)}" for name, value in members.items())])
        for heading, members in sections.items()
        if members
    ]
    return "\n\n".join(written) + "\n"


def _value(value: Any) -> str:
    if is_array(value):
        return f"[{', '.join(map(_value, value))}]"
    # A JSON string is a TOML string, except for the one control character that JSON does not escape.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
