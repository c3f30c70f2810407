from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from defserve.cli import COMMANDS
from defserve.cli.tree import commands
from defserve.clients.table import CLIENTS
from tests.cli.conftest import Outcome

Run = Callable[..., Outcome]
SHELLS = ("bash", "zsh", "fish")


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last word of a line."""
    line = " ".join(f"'{word}'" for word in words)
    program = (
        f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _defserve; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, cwd=script.parent)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.fixture
def script(defserve: Run, tmp_path: Path) -> Path:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    path = tmp_path / "completion.bash"
    path.write_text(defserve("completion", "bash").out)
    (tmp_path / "server.py").touch()
    return path


def test_the_tree_has_every_command_with_its_help():
    found = {command.words: command for command in commands()}
    assert {words[0] for words in found} == set(COMMANDS)
    assert all(any("--help" in option.flags for option in command.options) for command in found.values())
    assert {words for words in found if words[0] == "keys"} == {
        ("keys",), ("keys", "create"), ("keys", "list"), ("keys", "revoke"),
    }  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_option_and_choice_is_in_the_script(defserve: Run, shell: str):
    code, out, _ = defserve("completion", shell)
    assert code == 0
    for command in commands():
        assert command.words[-1] in out
        for option in command.options:
            flags = [flag.lstrip("-") if shell == "fish" else flag for flag in option.flags]
            assert all(flag in out for flag in (*flags, *option.choices))


def test_bash_completes_commands(script: Path):
    assert completed(script, "defserve", "") == {*COMMANDS, "--help", "--version"}
    assert completed(script, "defserve", "unin") == {"uninstall"}


def test_bash_completes_options_values_and_files(script: Path):
    assert completed(script, "defserve", "install", "ser") == {"server.py"}
    assert {"--client", "--dry-run"} <= completed(script, "defserve", "install", "server.py", "--")
    assert completed(script, "defserve", "install", "server.py", "--client", "") == set(CLIENTS)
    assert completed(script, "defserve", "install", "server.py", "--scope", "p") == {"project"}


def test_bash_completes_actions_and_their_options(script: Path):
    assert completed(script, "defserve", "keys", "re") == {"revoke"}
    assert completed(script, "defserve", "keys", "create", "--per") == {"--per-minute", "--per-hour"}
    assert completed(script, "defserve", "completion", "") >= set(SHELLS)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_itself_can_read_its_script(defserve: Run, tmp_path: Path, shell: str):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    path = tmp_path / "script"
    path.write_text(defserve("completion", shell).out)
    assert subprocess.run([shell, "-n", str(path)], capture_output=True).stderr == b""
