"""`defserve completion` and `defserve version`: the completion script of a shell; the versions of defserve and Python.

The tree of commands and options is read from the commands' own parsers, so it cannot fall behind them. The table of
commands is handed in from above, because it names the completion command too.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final, NamedTuple

from defserve.base.version import VERSION
from defserve.cli.parser import DESCRIBE_ARGUMENT, JSON_FLAG, CommandArgument, CommandParser, ParserDescriptionRequested
from defserve.cli.screen import show_stdout
from defserve.cli.screen_blocks import JsonBlock, StyledLine

ABOUT: Final = "Print the completion script of a shell. Once it is loaded, Tab completes commands, options and values."
EXAMPLES: Final = """  defserve completion bash > ~/.local/share/bash-completion/completions/defserve
  defserve completion zsh > ~/.zfunc/_defserve        with fpath+=~/.zfunc before compinit in .zshrc
  defserve completion fish > ~/.config/fish/completions/defserve.fish
"""


def run_completion(argv: list[str], table: CommandTable = MappingProxyType({})) -> int:
    """`table` holds the commands to complete; the caller gives it, because it names this command too."""
    options = CommandParser("defserve completion", ABOUT, EXAMPLES).parse_options(
        argv, CommandArgument("shell", choices=SHELLS, help="which shell")
    )
    print("\n".join(SHELLS[options.shell](list(list_commands(table)))))
    return 0


# -- The commands with their options, read from their own parsers.


CommandTable = Mapping[str, tuple[str, str]]
"""Name of a command → the function that runs it, as a dotted name, and one line about it."""


class OptionInfo(NamedTuple):
    """`takes`: whether a value follows. `choices`: the only values it takes, if they are fixed."""

    flags: tuple[str, ...]
    about: str
    takes: bool
    choices: tuple[str, ...]


class CommandInfo(NamedTuple):
    """`words` is how it is typed: ("keys", "create"). `choices`: what its first word may be, if that is fixed."""

    words: tuple[str, ...]
    about: str
    options: tuple[OptionInfo, ...]
    choices: tuple[str, ...]
    takes_words: bool


def list_commands(table: CommandTable) -> Iterator[CommandInfo]:
    """Every command of the table, each followed by its actions."""
    for name, (place, about) in table.items():
        module, _, function = place.rpartition(".")
        main = getattr(import_module(module), function)
        parser = _parser(main, [])
        yield _command((name,), about, parser)
        for action in _actions(parser):
            below = _parser(main, [action])
            yield _command((name, action), (below.description or "").partition("\n")[0], below)


def _parser(main: object, words: list[str]) -> argparse.ArgumentParser:
    assert callable(main)
    try:
        main([*words, DESCRIBE_ARGUMENT])
    except ParserDescriptionRequested as found:
        return found.parser
    raise AssertionError(f"{main} does not use a CommandParser")


def _actions(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    """The actions of a command such as `keys`: the choices of its argument `action`."""
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        if action.dest == "action" and not action.option_strings and action.choices is not None:
            return tuple(map(str, action.choices))
    return ()


def _command(words: tuple[str, ...], about: str, parser: argparse.ArgumentParser) -> CommandInfo:
    known = parser._actions  # pyright: ignore[reportPrivateUsage]
    options = tuple(
        OptionInfo(
            tuple(each.option_strings),
            (each.help or "").partition("\n")[0],
            each.nargs != 0,
            tuple(map(str, each.choices or ())),
        )
        for each in known
        if each.option_strings and each.help != argparse.SUPPRESS
    )
    positional = [each for each in known if not each.option_strings]
    choices = tuple(map(str, positional[0].choices or ())) if positional else ()
    return CommandInfo(words, about, options, choices, bool(positional))


# -- The completion scripts of bash, zsh and fish, written from the command tree.


def bash(known: list[CommandInfo]) -> list[str]:
    """The script looks at the first words of the command line and offers the words that may follow, or files."""
    names = [command.words[0] for command in known if len(command.words) == 1]
    rows: list[str] = []
    # The row of an action comes before that of its command.
    for command in sorted(known, key=lambda command: -len(command.words)):
        lines = (f"            {line}" for line in _bash_command(command))
        rows += [f"        {_pattern(command)})", *lines, "            ;;"]
    return [
        "# bash completion of defserve; made by: defserve completion bash",
        "_defserve() {",
        '    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"',
        '    local first="${COMP_WORDS[1]}" second="${COMP_WORDS[2]}" words="" files="yes"',
        "    if (( COMP_CWORD == 1 )); then",
        f'        words="{" ".join(names)} --help --version"; files=""',
        '    else case "$first $second" in',
        *rows,
        "    esac; fi",
        '    COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        '    if [[ -n "$files" && "$cur" != -* ]]; then COMPREPLY+=($(compgen -f -- "$cur")); fi',
        "}",
        "complete -o filenames -F _defserve defserve",
    ]


def _bash_command(command: CommandInfo) -> Iterator[str]:
    flags = " ".join(flag for option in command.options for flag in option.flags)
    yield 'case "$prev" in'
    for option in command.options:
        if option.choices:
            yield f'    {"|".join(option.flags)}) words="{" ".join(option.choices)}"; files="" ;;'
        elif option.takes:
            yield f"    {'|'.join(option.flags)}) ;;"
    yield f'    *) words="{flags}"'
    if command.choices:
        yield f"       if (( COMP_CWORD == {len(command.words) + 1} )); then"
        yield f'           words="$words {" ".join(command.choices)}"; files=""'
        yield "       fi"
    elif not command.takes_words:
        yield '       files=""'
    yield "       ;;"
    yield "esac"


def zsh(known: list[CommandInfo]) -> list[str]:
    names = [_quote_text(f"{_plain(c.words[0])}:{_plain(c.about)}") for c in known if len(c.words) == 1]
    rows: list[str] = []
    for command in sorted(known, key=lambda command: -len(command.words)):
        depth = len(command.words)
        rows += [
            f"        {_pattern(command)})",
            f"            shift {depth} words; (( CURRENT -= {depth} ))",
            "            _arguments -S " + " ".join(f"\\\n                {row}" for row in _zsh_arguments(command)),
            "            ;;",
        ]
    return [
        "#compdef defserve",
        "# zsh completion of defserve; made by: defserve completion zsh",
        "_defserve() {",
        "    local -a commands; commands=(",
        *(f"        {name}" for name in names),
        "    )",
        "    if (( CURRENT == 2 )); then _describe command commands; return; fi",
        '    case "$words[2] $words[3]" in',
        *rows,
        "    esac",
        "}",
        # Loaded from fpath, this is the body of the function; sourced, it registers itself.
        'if [[ "$funcstack[1]" == "_defserve" ]]; then _defserve "$@"; else compdef _defserve defserve; fi',
    ]


def _zsh_arguments(command: CommandInfo) -> Iterator[str]:
    for option in command.options:
        values = f"({' '.join(option.choices)})" if option.choices else "_files"
        value = f":value:{values}" if option.takes else ""
        yield from (_quote_text(f"*{flag}[{_plain(option.about)}]{value}") for flag in option.flags)
    if command.choices:
        yield _quote_text(f"1:what:({' '.join(command.choices)})")
    if command.takes_words:
        yield _quote_text("*:file:_files")


def fish(known: list[CommandInfo]) -> Iterator[str]:
    yield "# fish completion of defserve; made by: defserve completion fish"
    for command in known:
        if len(command.words) == 1:
            about = _quote_text(command.about)
            yield f"complete -c defserve -n __fish_use_subcommand -f -a {command.words[0]} -d {about}"
    for command in known:
        seen = " ; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.words)
        if command.choices:
            unseen = f"{seen} ; and not __fish_seen_subcommand_from {' '.join(command.choices)}"
            yield f"complete -c defserve -n {_quote_text(unseen)} -f -a {_quote_text(' '.join(command.choices))}"
        for option in command.options:
            yield f"complete -c defserve -n {_quote_text(seen)} {_fish_option(option)}"


def _fish_option(option: OptionInfo) -> str:
    flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
    value = f" -x -a {_quote_text(' '.join(option.choices))}" if option.choices else " -r" if option.takes else ""
    return f"{flags}{value} -d {_quote_text(option.about)}"


def _pattern(command: CommandInfo) -> str:
    """What the first two words of a line look like for this command."""
    name, *actions = command.words
    return f'"{name} {actions[0]}"' if actions else f'"{name} "*'


def _quote_text(text: str) -> str:
    return "'" + text.replace("\\", "").replace("'", "’") + "'"


def _plain(text: str) -> str:
    """Without the characters that are special in zsh."""
    return re.sub(r"[:\[\]\\`$]", "", text)


SHELLS: Final[dict[str, Callable[[list[CommandInfo]], Iterable[str]]]] = {"bash": bash, "zsh": zsh, "fish": fish}


# -- `defserve version`: show the versions of defserve and Python.


VERSION_EXAMPLES: Final = """  defserve version
  defserve version --json
"""


def run_version(argv: list[str]) -> int:
    parser = CommandParser("defserve version", "Show the version of defserve and of Python.", VERSION_EXAMPLES)
    options = parser.parse_options(argv, JSON_FLAG)
    about = {
        "defserve": VERSION,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": f"{sys.platform} {platform.machine()}",
        "executable": sys.executable,
    }
    running = f", {about['implementation']} {about['python']} on {about['platform']}"
    show_stdout(JsonBlock(about) if options.json else StyledLine((f"defserve {VERSION}", "heading"), running))
    return 0
