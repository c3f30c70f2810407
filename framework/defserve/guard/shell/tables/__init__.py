"""What is known of programs, as data in the notation of `specs`. Whatever stands here is known to be harmless.

`PROGRAMS` run without an author's list, `ON_REQUEST` only with one. What is missing is refused: a program, an option, a
form of its operands. Add an option only after reading its manual page: can it write, run, read elsewhere, talk to
somebody, or take a file of further options?

May import: `guard.shell.specs`.
"""

from defserve.guard.shell.specs import Table, by_name
from defserve.guard.shell.tables.files import FILES
from defserve.guard.shell.tables.files import TAR as _TAR
from defserve.guard.shell.tables.git import GIT
from defserve.guard.shell.tables.listed import ON_REQUEST as _ON_REQUEST
from defserve.guard.shell.tables.listed import UNKNOWN_DANGERS
from defserve.guard.shell.tables.packages import PACKAGES
from defserve.guard.shell.tables.refused import KINDS, NEVER_OPEN, VERSIONED
from defserve.guard.shell.tables.system import SYSTEM
from defserve.guard.shell.tables.text import TEXT
from defserve.guard.shell.tables.tools import CHECKS as _CHECKS
from defserve.guard.shell.tables.tools import TOOLS

PROGRAMS: dict[str, str | Table] = by_name({**TEXT, **FILES, **SYSTEM, **GIT, **PACKAGES, **TOOLS, "tar": "%tar"})
CHECKS: dict[tuple[str, ...], str] = {tuple(words.split()): str(rules) for words, rules in _CHECKS.items()}
TAR: dict[str, str | Table] = by_name(_TAR)
ON_REQUEST: dict[str, str | Table] = by_name(_ON_REQUEST)

__all__ = ["CHECKS", "KINDS", "NEVER_OPEN", "ON_REQUEST", "PROGRAMS", "TAR", "UNKNOWN_DANGERS", "VERSIONED"]
