"""`defserve completion`: print the script that teaches a shell our commands and options."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from defserve.cli.completion.scripts import SHELLS
from defserve.cli.completion.tree import CommandTable, commands
from defserve.cli.parser import CommandParser

ABOUT: Final = "Print the completion script of a shell. Once it is loaded, Tab completes commands, options and values."
EXAMPLES: Final = """  defserve completion bash > ~/.local/share/bash-completion/completions/defserve
  defserve completion zsh > ~/.zfunc/_defserve        with fpath+=~/.zfunc before compinit in .zshrc
  defserve completion fish > ~/.config/fish/completions/defserve.fish
"""


def main(argv: list[str], table: CommandTable = MappingProxyType({})) -> int:
    """`table` holds the commands to complete; the caller gives it, because it names this command too."""
    parser = CommandParser("defserve completion", ABOUT, EXAMPLES)
    parser.add_argument("shell", choices=SHELLS, help="which shell")
    options = parser.parse_args(argv)
    print("\n".join(SHELLS[options.shell](list(commands(table)))))
    return 0
