"""Every module has its logger from one place, so that no line of a log can show what an exception says unmasked."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "framework" / "defserve"

LOGGER = re.compile(r"\bgetLogger\b|\.getChild\(|\bLoggerAdapter\b")

# Files that name another way to a logger → why.
ALLOWED = {
    "base/redaction.py": "the place itself",
    "guard/code/allowed_names.py": "what judged code may name",
    "guard/http_client.py": "the loggers of other packages",
    "server/logs.py": "the root, for its level",
    "tooling/migrate/name_tables.py": "what migrated code calls",
}


def test_every_logger_is_one_that_masks_exceptions():
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if LOGGER.search(path.read_text(encoding="utf-8"))
    }
    assert found == set(ALLOWED), "use get_logger of base/redaction.py, and exc_info for a traceback"
