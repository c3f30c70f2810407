"""What is known of single servers: what a person does by hand, and the differences that are meant."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple


class Edit(NamedTuple):
    """What a person writes who follows a note, instead of the one line that begins with `start`."""

    file: str
    start: str
    text: str

    def apply(self, folder: Path) -> None:
        path = folder / self.file
        lines = path.read_text(encoding="utf-8").splitlines()
        (place,) = (place for place, line in enumerate(lines) if line.startswith(self.start))
        lines[place] = self.text
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


BY_HAND: Final[dict[str, list[Edit]]] = {
    # `run(transport=…, **options)`: what the options are is only known when it runs.
    "mcp-server-apache-airflow-fastmcp": [Edit("src/main.py", "    app.run(", "    app.run()")],
    # A route of its own, which has nothing to do with stdio.
    "iflow-mcp-weiyuan-lane-mcp-exchange-rate-server": [Edit("main.py", "@mcp.custom_route(", "")],
}

# Server → pairs of a pattern for lines that the comparison prints, and why it is so.
DIFFERENCES: Final[dict[str, list[tuple[str, str]]]] = {
    "iflow-mcp-hkopenai-hk-finance-mcp-server": [
        (
            "call *: done (*error*), now failed (*internal error*",
            "without a network it returns an object where a list is declared; results are checked here",
        )
    ],
    "godot-mcp-server": [
        (
            "read project://*: failed (*got dict*",
            "FastMCP 3 refuses an object that a resource returns; here it is JSON",
        ),
        ("prompt *: failed (*Error rendering prompt*", "the same, for a message that a prompt returns as an object"),
    ],
    "tmux-mcp-server": [
        ("call *pane*", "it shows process ids, and which program has just started in a pane"),
        ("call *window*", "it shows which program has just started in a window"),
    ],
}

# Servers whose declared differences come and go, because they show what other programs do at that moment.
UNSTEADY: Final = frozenset({"tmux-mcp-server"})
