"""Runs the controls of a family, in a process of its own: what is patched there is patched nowhere else.

One JSON object a line: `{"module", "name", "seed"}` comes in, a list of bites goes out.
"""

from __future__ import annotations

import io
import json
import os
import re
import selectors
import subprocess
import sys
import time
import traceback
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib import import_module
from random import Random

from tests.attack.arena import ROOT, Arena
from tests.attack.controls.patching import Patch, remove
from tests.attack.speaking.sockets import watch_connections
from tests.attack.trial import Attack, Bite, Bitten, Control, NotTried, Trial

MAX_SECONDS = 120.0
"""A control that takes longer hangs."""


class Controller:
    """The process that runs the controls of one family."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[str] | None = None

    def run(self, attack: Attack, seed: int) -> list[Bite]:
        """How each control of this attack went."""
        if not attack.controls:
            return []
        process = self._start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"module": self._module, "name": attack.name, "seed": seed}) + "\n")
        process.stdin.flush()
        # Not `select`, which takes no descriptor past 1023: the families beside it hold very many connections.
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            ready = selector.select(MAX_SECONDS * len(attack.controls))
        line = process.stdout.readline() if ready else ""
        if not line:
            self.close()
            said = "its process has ended" if ready else f"not over after {MAX_SECONDS:g} s"
            return [Bite(control.title, False, said) for control in attack.controls]
        return [Bite(**found) for found in json.loads(line)]

    def _start(self) -> subprocess.Popen[str]:
        if self._process is None:
            command = [sys.executable, "-m", "tests.attack.controlling"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, text=True
            )
        return self._process

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def run_control(attack: Attack, control: Control, arena: Arena, seed: int) -> Bite:
    """The attack where the protection is missing: it bites if the expectation that the control names fails."""
    trial = Trial(arena, Random(f"{seed} {attack.family} {attack.name}"), control, control.case)
    arena.remove(control.name)
    arena.used, arena.grown = set(), 0.0
    began, patch = time.monotonic(), Patch()
    said, is_missing = "", False
    try:
        if control.here:
            patch = remove(control.name)
        attack.run(trial)
        arena.expect_bounded(trial, attack.growth)
    except Bitten:
        pass
    except NotTried as reason:
        said, is_missing = f"not tried: {reason}", reason.is_missing_feature
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rpartition('/')[2]}:{where.lineno}"
        said = f"it broke: {type(error).__name__}: {error} ({place})"
    finally:
        patch.undo()
    seconds = time.monotonic() - began
    # Not by `Bitten` alone: a task or a thread of the attack may have kept it to itself.
    if bitten := [failure for failure in trial.failures if re.search(control.bites, failure)]:
        return Bite(control.title, True, bitten[0][:300], seconds)
    others = f"; another expectation failed: {trial.failures[0][:200]}" if trial.failures else ""
    said = said[:300] or f"nothing fails that is like {control.bites!r}"
    return Bite(control.title, False, said + others, seconds, is_missing)


def main() -> None:
    watch_connections()
    arena, answers = Arena(), os.fdopen(os.dup(1), "w")
    try:
        with redirect_stdout(io.StringIO()):
            for line in sys.stdin:
                asked = json.loads(line)
                attacks = {attack.name: attack for attack in import_module(asked["module"]).FAMILY.attacks}
                attack = attacks[asked["name"]]
                bites = [run_control(attack, control, arena, asked["seed"]) for control in attack.controls]
                print(json.dumps([asdict(bite) for bite in bites]), file=answers, flush=True)
    finally:
        arena.close()


if __name__ == "__main__":
    main()
