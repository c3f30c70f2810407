"""One target under Atheris, in a process of its own: `python -m tests.fuzz.engine NAME libFuzzer-options… FOLDER`."""

from __future__ import annotations

import logging
import sys
import warnings

import atheris  # type: ignore[import-not-found]

from tests.fuzz.targets import target


def main(name: str, *options: str) -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    with atheris.instrument_imports(include=["defserve"]):
        run = target(name)
        run(b"")  # so that what it imports late is watched, too
    atheris.Setup([sys.argv[0], *options], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
