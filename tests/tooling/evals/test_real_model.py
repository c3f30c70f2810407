"""A real model answers on loopback. It is large, so it is asked only where somebody has installed it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.tooling.evals.conftest import Shelf
from tests.tooling.evals.real_model import INSTALL, MODEL, is_installed, serve_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed(), reason=f"no model is installed; `{INSTALL}` installs one (1.2 GB)"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve_model() as address:
        yield address


@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
def test_a_real_model_is_judged_and_its_recording_replayed(shelf: Shelf, url: str, dialect: str) -> None:
    words = ("shelf.eval.yaml", "--model", f"{dialect}:{MODEL}", "--case", "by author", "--runs", 1)
    words = (*words, "--temperature", 0, "--max-output-tokens", 60, "--json")
    asked = shelf.evaluate(*words, "--url", url, "--answer-timeout", 900)
    assert asked.code in (0, 1), asked.err
    (recording,) = shelf.recordings
    (line,) = recording.read_text(encoding="utf-8").splitlines()[1:]
    # The definitions of four tools are more than a hundred tokens: the model was shown them.
    assert json.loads(line)["usage"]["input"] > 100
    replayed = shelf.evaluate(*words, "--replay")
    assert replayed.code == asked.code
    assert json.loads(replayed.out)["matrix"] == json.loads(asked.out)["matrix"]
