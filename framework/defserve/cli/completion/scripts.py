"""The completion scripts of bash, zsh and fish, written from the command tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from defserve.cli.completion.tree import CommandInfo, OptionInfo


def bash(known: list[CommandInfo]) -> Iterator[str]:
    """The script looks at the first words of the command line and offers the words that may follow, or files."""
    names = [command.words[0] for command in known if len(command.words) == 1]
    yield "# bash completion of defserve; made by: defserve completion bash"
    yield "_defserve() {"
    yield '    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"'
    yield '    local first="${COMP_WORDS[1]}" second="${COMP_WORDS[2]}" words="" files="yes"'
    yield "    if (( COMP_CWORD == 1 )); then"
    yield f'        words="{" ".join(names)} --help --version"; files=""'
    yield '    else case "$first $second" in'
    # The row of an action comes before that of its command.
    for command in sorted(known, key=lambda command: -len(command.words)):
        yield f"        {_pattern(command)})"
        yield from (f"            {line}" for line in _bash_command(command))
        yield "            ;;"
    yield "    esac; fi"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$cur"))'
    yield '    if [[ -n "$files" && "$cur" != -* ]]; then COMPREPLY+=($(compgen -f -- "$cur")); fi'
    yield "}"
    yield "complete -o filenames -F _defserve defserve"


def _bash_command(command: CommandInfo) -> Iterator[str]:
    depth = len(command.words)
    flags = " ".join(flag for option in command.options for flag in option.flags)
    yield 'case "$prev" in'
    for option in command.options:
        if option.choices:
            yield f'    {"|".join(option.flags)}) words="{" ".join(option.choices)}"; files="" ;;'
        elif option.takes:
            yield f"    {'|'.join(option.flags)}) ;;"
    yield f'    *) words="{flags}"'
    if command.choices:
        yield f"       if (( COMP_CWORD == {depth + 1} )); then"
        yield f'           words="$words {" ".join(command.choices)}"; files=""'
        yield "       fi"
    elif not command.takes_words:
        yield '       files=""'
    yield "       ;;"
    yield "esac"


def zsh(known: list[CommandInfo]) -> Iterator[str]:
    yield "#compdef defserve"
    yield "# zsh completion of defserve; made by: defserve completion zsh"
    yield "_defserve() {"
    yield "    local -a commands; commands=("
    yield from (f"        {_quoted(f'{_plain(c.words[0])}:{_plain(c.about)}')}" for c in known if len(c.words) == 1)
    yield "    )"
    yield "    if (( CURRENT == 2 )); then _describe command commands; return; fi"
    yield '    case "$words[2] $words[3]" in'
    for command in sorted(known, key=lambda command: -len(command.words)):
        depth = len(command.words)
        yield f"        {_pattern(command)})"
        yield f"            shift {depth} words; (( CURRENT -= {depth} ))"
        rows = [*_zsh_options(command), *_zsh_words(command)]
        yield "            _arguments -S " + " ".join(f"\\\n                {row}" for row in rows)
        yield "            ;;"
    yield "    esac"
    yield "}"
    # Loaded from fpath, this is the body of the function; sourced, it registers itself.
    yield 'if [[ "$funcstack[1]" == "_defserve" ]]; then _defserve "$@"; else compdef _defserve defserve; fi'


def _zsh_options(command: CommandInfo) -> Iterator[str]:
    for option in command.options:
        for flag in option.flags:
            values = f"({' '.join(option.choices)})" if option.choices else "_files"
            value = f":value:{values}" if option.takes else ""
            yield _quoted(f"*{flag}[{_plain(option.about)}]{value}")


def _zsh_words(command: CommandInfo) -> Iterator[str]:
    if command.choices:
        yield _quoted(f"1:what:({' '.join(command.choices)})")
    if command.takes_words:
        yield _quoted("*:file:_files")


def fish(known: list[CommandInfo]) -> Iterator[str]:
    yield "# fish completion of defserve; made by: defserve completion fish"
    for command in known:
        if len(command.words) == 1:
            yield f"complete -c defserve -n __fish_use_subcommand -f -a {command.words[0]} -d {_quoted(command.about)}"
    for command in known:
        seen = " ; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.words)
        if command.choices:
            unseen = f"{seen} ; and not __fish_seen_subcommand_from {' '.join(command.choices)}"
            yield f"complete -c defserve -n {_quoted(unseen)} -f -a {_quoted(' '.join(command.choices))}"
        for option in command.options:
            yield f"complete -c defserve -n {_quoted(seen)} {_fish_option(option)}"


def _fish_option(option: OptionInfo) -> str:
    flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
    value = f" -x -a {_quoted(' '.join(option.choices))}" if option.choices else " -r" if option.takes else ""
    return f"{flags}{value} -d {_quoted(option.about)}"


def _pattern(command: CommandInfo) -> str:
    """What the first two words of a line look like for this command."""
    name, *actions = command.words
    return f'"{name} {actions[0]}"' if actions else f'"{name} "*'


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "").replace("'", "’") + "'"


def _plain(text: str) -> str:
    """Without the characters that are special in zsh."""
    return re.sub(r"[:\[\]\\`$]", "", text)


SHELLS: Final[dict[str, Callable[[list[CommandInfo]], Iterator[str]]]] = {"bash": bash, "zsh": zsh, "fish": fish}
