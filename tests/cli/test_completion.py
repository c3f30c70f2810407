from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from defserve.cli import COMMANDS
from defserve.cli.commands.completion import list_commands
from defserve.client.known_clients import KNOWN_CLIENTS
from tests.cli.running import Run
from tests.cli.shells import WAYS

Offers = Callable[..., set[str]]
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(params=WAYS)
def offers(request: pytest.FixtureRequest, defserve: Run, tmp_path: Path) -> Offers:
    """What a shell offers for the last of some words, in a folder with a file."""
    way: str = request.param
    shell = way.partition(" ")[0]
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    script = tmp_path / f"completion.{shell}"
    script.write_text(defserve("completion", shell).out)
    (tmp_path / "server.py").touch()
    return lambda *words: WAYS[way](script, *words)


def test_the_tree_has_every_command_with_its_help():
    found = {command.words: command for command in list_commands(COMMANDS)}
    assert {words[0] for words in found} == set(COMMANDS)
    assert all(any("--help" in option.flags for option in command.options) for command in found.values())
    assert {words for words in found if words[0] == "keys"} == {
        ("keys",), ("keys", "create"), ("keys", "list"), ("keys", "revoke"),
    }  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_option_and_choice_is_in_the_script(defserve: Run, shell: str):
    code, out, _ = defserve("completion", shell)
    assert code == 0
    for command in list_commands(COMMANDS):
        assert command.words[-1] in out
        for option in command.options:
            flags = [flag.lstrip("-") if shell == "fish" else flag for flag in option.flags]
            assert all(flag in out for flag in (*flags, *option.choices))


@pytest.mark.slow
def test_commands_are_completed(offers: Offers):
    assert offers("defserve", "") - {"--help", "--version"} == set(COMMANDS)
    assert offers("defserve", "unin") == {"uninstall"}


@pytest.mark.slow
def test_options_values_and_files_are_completed(offers: Offers):
    assert offers("defserve", "install", "ser") == {"server.py"}
    assert {"--client", "--dry-run"} <= offers("defserve", "install", "server.py", "--")
    assert offers("defserve", "install", "server.py", "--client", "") == set(KNOWN_CLIENTS)
    assert offers("defserve", "install", "server.py", "--scope", "p") == {"project"}


@pytest.mark.slow
def test_actions_and_their_options_are_completed(offers: Offers):
    assert offers("defserve", "keys", "re") == {"revoke"}
    assert offers("defserve", "keys", "create", "--per") == {"--per-minute", "--per-hour"}
    assert offers("defserve", "completion", "") >= set(SHELLS)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_itself_can_read_its_script(defserve: Run, tmp_path: Path, shell: str):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    path = tmp_path / "script"
    path.write_text(defserve("completion", shell).out)
    assert subprocess.run([shell, "-n", str(path)], capture_output=True).stderr == b""
