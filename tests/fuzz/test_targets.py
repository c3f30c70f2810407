"""Every target holds for what is kept of the fuzzer's inputs, and for some that are changed a little."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.targets import TARGETS, served, target
from tests.rows import for_each_row

CORPUS = Path(__file__).parent / "corpus"
MOST_BYTES = 200_000
SAMPLE = 12


@pytest.fixture(scope="module", autouse=True)
def _closed_loop() -> Iterator[None]:
    yield
    served.close_connections()


@for_each_row("name", TARGETS)
def test_a_target_holds_for_its_corpus(name: str):
    run, random = target(name), Random(name)
    kept = sorted((CORPUS / name).iterdir())
    assert kept, f"{name} has no inputs"
    for file in random.sample(kept, min(SAMPLE, len(kept))):
        data = file.read_bytes()
        at = random.randrange(len(data) + 1)
        for given in (data, data[:at], data[:at] + bytes((random.randrange(256),)) + data[at + 1 :]):
            try:
                run(given)
            except BaseException as error:
                error.add_note(f"input {given!r}")
                raise


def test_the_corpus_stays_small():
    assert sum(file.stat().st_size for file in CORPUS.rglob("*") if file.is_file()) < MOST_BYTES
