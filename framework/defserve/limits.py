"""Every size, time and concurrency default in one frozen object. Times are seconds, sizes are bytes."""

from __future__ import annotations

from dataclasses import fields

from defserve.base.frozen import FrozenDataclass
from defserve.errors import UsageError, explain_arguments


@explain_arguments
class Limits(FrozenDataclass):
    """What one server allows. Replace single fields: `Limits(tool=120, in_flight=16)`.

    Calls past `in_flight` (of one client) or `in_flight_total` wait. When `queued` calls or `queued_bytes` bytes of one
    client wait, its pipe is not read any more. Over HTTP a call waits for `queue` seconds at most, then there is a 429.

    `tool`, `validation`, `discovery` and `lock` bound running a tool, checking its arguments, making a list and waiting
    for a state that another call holds. The error names the limit. Code that does not wait cannot be interrupted: it is
    bounded by the sizes, and what took too long is refused afterwards.

    `tasks` and `task_bytes` bound the tasks that are kept for one principal, `task_ttl` how long they may be kept. When
    nothing was heard of a process for `task_heartbeat` seconds, its tasks count as lost.
    """

    # sizes
    message: int = 4 * 1024 * 1024
    response: int = 8 * 1024 * 1024
    depth: int = 64
    keys: int = 10_000
    description: int = 8_192
    page: int = 1_000
    injection: int = 64 * 1024
    checkpoint: int = 1024 * 1024
    patch_operations: int = 1_000
    task_bytes: int = 64 * 1024 * 1024
    # times
    tool: float = 60.0
    tool_max: float = 3_600.0
    validation: float = 5.0
    discovery: float = 2.0
    lock: float = 60.0
    question: float = 600.0
    callback: float = 60.0
    hook: float = 5.0
    blocking_hook: float = 10.0
    queue: float = 5.0
    idle: float = 1_800.0
    header: float = 10.0
    body: float = 30.0
    drain: float = 30.0
    farewell: float = 0.25
    task_ttl: float = 7 * 86_400.0
    task_heartbeat: float = 10.0
    # concurrency
    in_flight: int = 64
    in_flight_total: int = 1_024
    queued: int = 256
    queued_bytes: int = 1024 * 1024
    sessions: int = 10_000
    sessions_per_principal: int = 100
    sessions_per_address: int = 1_000
    connections: int = 4_096
    threads: int = 32
    subscriptions: int = 1_000
    tasks: int = 1_000
    # rates, of an authenticated caller and one tool
    rate: float = 50.0
    burst: int = 100
    # conduct
    malformed_in_a_row: int = 16
    log_messages_per_call: int = 10_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not is_positive_number(value):
                raise UsageError(
                    f"Limits({field.name}={value!r}) must be positive and finite",
                    fix="leave it out for the default, or give a large number to lift the limit",
                )


def is_positive_number(value: object) -> bool:
    """Whether it can be a limit: neither infinite nor "not a number", which compare with nothing."""
    return isinstance(value, int | float) and 0 < value < float("inf")
