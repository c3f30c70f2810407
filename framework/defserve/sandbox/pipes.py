"""Exchanges data with a process that may send anything, too much or nothing: limited in bytes and in time."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from dataclasses import dataclass, field
from typing import Literal

from defserve.sandbox.outcome import SandboxLimits

CHUNK = 64 * 1024
# Room for the report around a value, or for an error's text.
ENVELOPE = 32 * 1024


@dataclass(slots=True)
class ChildOutput:
    """What the process sent, and which limit it broke, if any.

    `startup` comes from us alone: the program has no way to write there. `report` is what the program says of itself.
    """

    stdout: bytearray = field(default_factory=bytearray)
    startup: bytearray = field(default_factory=bytearray)
    report: bytearray = field(default_factory=bytearray)
    broke: Literal["timeout", "output"] | None = None


def converse(
    process: subprocess.Popen[bytes],
    startup: int,
    result: int,
    message: bytes,
    limits: SandboxLimits,
    deadline: float,
) -> ChildOutput:
    """Send the process its job, and read until it has ended or reached a limit.

    A process that closed its pipes without a report can say nothing more, so the caller may kill it at once.
    """
    assert process.stdin is not None and process.stdout is not None
    output, rest = ChildOutput(), memoryview(message)
    sinks = {
        process.stdout.fileno(): (output.stdout, limits.output_bytes),
        startup: (output.startup, ENVELOPE),
        result: (output.report, limits.output_bytes + ENVELOPE),
    }
    with selectors.DefaultSelector() as selector:
        for descriptor in sinks:
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while sinks and output.broke is None:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if time.monotonic() >= deadline:
                output.broke = "timeout"
                break
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    rest = _send(process.stdin.fileno(), rest)
                    if not rest:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                elif not (chunk := os.read(key.fd, CHUNK)):
                    selector.unregister(key.fd)
                    del sinks[key.fd]
                elif not _keep(chunk, *sinks[key.fd]):
                    output.broke = "output"
    if output.report and output.broke is None and not _has_ended(process, deadline):
        output.broke = "timeout"
    return output


def _has_ended(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Whether it ends in time. Only then does its exit code tell how."""
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _keep(chunk: bytes, sink: bytearray, most: int) -> bool:
    """Add a chunk as far as there is room. Returns whether all of it fitted."""
    sink += chunk
    fits = len(sink) <= most
    del sink[most:]
    return fits


def _send(descriptor: int, rest: memoryview) -> memoryview:
    """What is left to write; nothing if the reader has gone."""
    try:
        return rest[os.write(descriptor, rest[:CHUNK]) :]
    except BrokenPipeError:
        return rest[:0]
