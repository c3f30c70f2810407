"""A filter on a log, for as long as a block runs."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def filtered(log: logging.Logger, by: logging.Filter) -> Generator[None]:
    log.addFilter(by)
    try:
        yield
    finally:
        log.removeFilter(by)
