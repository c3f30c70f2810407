"""Real shells, asked what they offer for the last word of a line once they have read a completion script."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

DEADLINE = 30

# Every match is written down on its way into the list. The first prompt is the moment at which there is a line editor,
# which completion needs.
ZSHRC = """
compadd() {
    if (( ! ${@[(I)-[OAD]*]} )); then
        local -a __hits
        builtin compadd -A __hits "$@"
        print -rl -- $__hits >> "$HITS"
    fi
    builtin compadd "$@"
}
zle -C list-them list-choices _main_complete
zle-line-init() { BUFFER="$LINE"; CURSOR=$#BUFFER; zle list-them; exit 0 }
zle -N zle-line-init
"""


def bash(script: Path, *words: str) -> set[str]:
    line = " ".join(f"'{word}'" for word in words)
    program = (
        f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _defserve; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, cwd=script.parent)
    assert done.stderr == ""
    return set(done.stdout.split())


def fish(script: Path, *words: str) -> set[str]:
    home = {"HOME": str(script.parent / "home"), "XDG_CONFIG_HOME": str(script.parent / "home")}
    program = f"source {script}; complete -C '{' '.join(words)}'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", program], capture_output=True, text=True, cwd=script.parent, env=os.environ | home
    )
    assert (done.returncode, done.stderr) == (0, "")
    return {line.partition("\t")[0] for line in done.stdout.splitlines()}


def zsh(script: Path, *words: str) -> set[str]:
    return _zsh(script, f'compinit -u -d "$ZDOTDIR/dump"; source {script}', words)


def zsh_autoloaded(script: Path, *words: str) -> set[str]:
    """From a folder of functions, where the file has to be called as the function is."""
    functions = script.parent / "functions"
    functions.mkdir(exist_ok=True)
    (functions / "_defserve").write_bytes(script.read_bytes())
    return _zsh(script, f'fpath+={functions}; compinit -u -d "$ZDOTDIR/dump"', words)


def _zsh(script: Path, loading: str, words: Sequence[str]) -> set[str]:
    home, hits = script.parent / "zdotdir", script.parent / "hits"
    home.mkdir(exist_ok=True)
    (home / ".zshrc").write_text(f"autoload -Uz compinit\n{loading}\n{ZSHRC}")
    hits.write_text("")
    told = {"ZDOTDIR": home, "HITS": hits, "LINE": " ".join(words), "TERM": "dumb"}
    environment = {**os.environ, **{name: str(value) for name, value in told.items()}}
    ours, its = pty.openpty()
    shell = subprocess.Popen(
        ["zsh", "-d", "-i"], stdin=its, stdout=its, stderr=its, cwd=script.parent, env=environment, process_group=0
    )
    os.close(its)
    shown = _all_of(ours)
    assert shell.wait(DEADLINE) == 0, shown
    return set(hits.read_text().split())


def _all_of(terminal: int) -> bytes:
    """What is shown until the other side is closed, which Linux tells by an error."""
    shown = b""
    with open(terminal, "rb", buffering=0) as file:
        try:
            while said := file.read(4096):
                shown += said
        except OSError:
            pass
    return shown


# The program is the first word.
WAYS: dict[str, Callable[..., set[str]]] = {
    "bash": bash,
    "zsh": zsh,
    "zsh autoloaded": zsh_autoloaded,
    "fish": fish,
}
