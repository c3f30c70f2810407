from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from defserve.cli.own import main


class Program:
    name, version = "calc", "1.2"

    def __init__(self) -> None:
        self.ran: list[dict[str, str]] = []

    def run(self, **options: str) -> int | None:
        self.ran.append(options)
        return 3 if options else None


@pytest.fixture
def program() -> Program:
    return Program()


def test_without_arguments_it_runs_at_once(program: Program):
    assert main(program, []) == 0
    assert program.ran == [{}]


def test_an_address_is_passed_on_and_the_exit_code_comes_back(program: Program):
    assert main(program, ["--on", "unix:/x"]) == 3
    assert program.ran == [{"on": "unix:/x"}]


def test_the_log_level_is_set(program: Program, monkeypatch: pytest.MonkeyPatch):
    chosen: list[object] = []
    monkeypatch.setattr(logging, "basicConfig", lambda **options: chosen.append(options["level"]))
    main(program, ["--log-level", "debug"])
    assert chosen == ["DEBUG"]
    assert program.ran == [{"on": "stdio:"}]


@pytest.mark.parametrize(("flag", "code"), [("--version", 0), ("-h", 0), ("--bogus", 1)])
def test_questions_about_the_program_do_not_serve(
    program: Program, flag: str, code: int, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as stop:
        main(program, [flag])
    assert (stop.value.code, program.ran) == (code, [])
    if flag == "--version":
        assert capsys.readouterr().out == "calc 1.2\n"


def test_without_arguments_nothing_is_imported_to_read_them():
    code = (
        "import sys\nfrom defserve.cli.own import main\n"
        "class Program:\n    def run(self): print('argparse' in sys.modules)\n"
        "main(Program(), [])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
