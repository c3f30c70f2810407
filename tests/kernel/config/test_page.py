"""The files that docs/kernel.md shows are files that a kernel takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from defserve.kernel.config.loading import load_kernel_config

PAGE = Path(__file__).parents[3] / "docs" / "kernel.md"
SHOWN = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("text", SHOWN, ids=range(len(SHOWN)))
def test_a_file_of_the_page_is_valid(text: str, tmp_path: Path) -> None:
    (tmp_path / "mgp.toml").write_text(text)
    assert load_kernel_config(tmp_path / "mgp.toml").notes == ()


def test_the_page_shows_files() -> None:
    assert len(SHOWN) >= 2
