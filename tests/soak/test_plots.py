from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.soak import plots

RUN: dict[str, Any] = {"times": [0.0, 1.0], "values": {"memory": [40.0, 41.0]}, "growing": []}


def test_a_picture_is_photographed_in_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    browser = tmp_path / "chromium"
    browser.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "file = next(one.partition('=')[2] for one in sys.argv if one.startswith('--screenshot='))\n"
        "open(file, 'w').write(' '.join(sys.argv))\n"
    )
    browser.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "soak.png"
    assert plots.write_png(plots.picture({"one": RUN, "two": RUN}), file) is None
    assert "--window-size=1442,160 file://" in file.read_text()


def test_without_a_browser_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    problem = plots.write_png(plots.picture({"one": RUN}), tmp_path / "soak.png")
    assert problem is not None and "chromium" in problem
