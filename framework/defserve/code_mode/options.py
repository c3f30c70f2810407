"""What code mode may use: the options of `Server(code_mode=…)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from defserve.errors import UsageError

KiB, MiB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class CodeMode:
    """The limits of code mode, and how it is offered. `Server(code_mode=True)` stands for the defaults."""

    seconds: float = 30.0
    """How long one run may take. The calls it makes count, waiting for a person does not."""
    compute_seconds: float = 5.0
    """How much of that the code itself may compute."""
    memory_bytes: int = 64 * MiB
    """The heap of the code."""
    output_bytes: int = 64 * KiB
    """The most that it may print, and the most that its value may take. One byte more ends the run."""
    source_bytes: int = 64 * KiB
    """The most that the code itself may have."""
    calls: int = 100
    """How many tools one run may call."""
    at_once: int = 8
    """How many of them may run at the same time."""
    workers: int = 8
    """How many runs may go on at the same time, half of them for one caller. More wait. Each has its own process."""
    parked: int = 64
    """How many runs may wait for an answer, where a question ends the request (2026-07-28)."""
    scopes: Sequence[str] = ()
    """What a caller's token must hold to run code. The tools that the code calls keep their own."""
    list_tools: bool = True
    """False leaves the other tools out of `tools/list`: a model finds them with `describe_tools`."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
                raise UsageError(
                    f"CodeMode({field.name}={value!r}) must be positive", fix="leave it out for the default"
                )


def read_code_mode(given: object) -> CodeMode:
    """The options of `Server(code_mode=given)`. Raises UsageError for what is neither True nor a CodeMode."""
    if given is True:
        return CodeMode()
    if not isinstance(given, CodeMode):
        raise UsageError(f"Server(code_mode={given!r}) is not possible", fix="use True, or CodeMode(…)")
    return given
