"""What the child of `defserve dev` says of a file that cannot be served."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from defserve.tooling.devserver.child import main
from defserve.tooling.devserver.handover import ServePlan


def test_a_file_that_ends_the_program_is_told_in_words_and_its_name_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "ends_at_once.py"
    file.write_text("import sys\nsys.exit(3)\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    plan = ServePlan(str(file), {"on": "stdio:"}, report=str(tmp_path / "report"))
    try:
        assert main(plan.to_json()) == 1
    finally:
        sys.modules.pop("ends_at_once", None)
    err = capsys.readouterr().err
    assert err.startswith(f"error: {file}:2: ends_at_once.py ended the program while it was loaded (exit 3)\n")
    assert str(file) in (tmp_path / "report").read_text()
