"""MGP §4.5 on the client's side: a standard validator over the arguments of a call, before it is forwarded. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from defserve.core.json_values import is_array, is_object
from defserve.guard.argument_types import Code
from defserve.guard.code.allowed_names import CodeLevel
from defserve.guard.code.policy import CodePolicy
from defserve.guard.shell import judgement
from defserve.guard.shell.judgement import ShellMode
from defserve.guard.verdict import Verdict, require_allowed
from defserve.protocols.mgp.security import STANDARD_VALIDATORS

# The list of programs that a tool may run is its author's, and is not sent to the client.
_UNLISTED = frozenset({"unknown-program", "subcommand"})


def apply_standard_validator(name: str, arguments: Mapping[str, Any], block: Mapping[str, Any] | None = None) -> None:
    """Apply the validator `name` to the arguments whose names it knows. If there are none, apply it to all.

    `block` is the `security` object of a server that applies the validator too. That server knows which arguments are
    meant. So if there are several and no name is known, none is judged here. The server's code safety settings apply.
    Commands are judged by their form and known dangers, not by whether the program is on a list. Raises Rejected.
    """
    _, known_names = STANDARD_VALIDATORS[name]
    found = {argument: list(iter_texts(value)) for argument, value in arguments.items()}
    named = [texts for argument, texts in found.items() if argument in known_names]
    meant = named or [texts for texts in found.values() if texts]
    if block is not None and len(meant) > 1 and known_names.isdisjoint(found):
        return
    for text in (text for several in meant for text in several):
        if block is not None and (name == "sandbox" or name == "readonly"):
            require_allowed(_in_form(text, name), "Command refused", name)
        elif block is not None and name == "code_safety":
            _code(block.get("code_safety")).source(text)
        else:
            STANDARD_VALIDATORS[name][0](text)


def iter_texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, wherever it is nested."""
    waiting: list[Any] = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif is_object(one):
            waiting.extend(one.values())
        elif is_array(one):
            waiting.extend(one)


def _in_form(command: str, mode: ShellMode) -> Verdict:
    verdict = judgement.judge(command, mode=mode)
    rules = {violation.rule for violation in verdict.violations}
    if verdict.allowed or not rules <= _UNLISTED:
        return verdict
    if "unknown-program" in rules:
        return judgement.judge(command, mode=mode, allowed=command.split()[:1])
    return Verdict(True)


def _code(block: Any) -> Code:
    """A server's code safety settings (§7.3). Malformed ones are ignored.

    Whatever the level refuses in any case is left to the level: it knows the exceptions.
    """
    said: Mapping[str, Any] = block if is_object(block) else {}
    level: Any = said.get("level") if said.get("level") in get_args(CodeLevel) else "standard"
    usual, size = _usual(level, ()), said.get("max_code_size_bytes")
    named = (_names(said.get(field)) or [] for field in ("blocked_imports", "blocked_patterns"))
    blocked = sorted(
        {name for names in named for name in names} - {*usual["blocked_imports"], *usual["blocked_patterns"]}
    )
    allow = _names(said.get("allowed_imports"))
    return Code(
        level=level,
        allow=None if allow == _usual(level, blocked)["allowed_imports"] else allow,
        block=blocked or None,
        max_bytes=size if isinstance(size, int) and size > 0 else None,
    )


def _usual(level: CodeLevel, block: Sequence[str]) -> dict[str, Any]:
    """What a level declares, if an author adds nothing but this."""
    none: dict[str, Any] = {"blocked_imports": [], "blocked_patterns": [], "allowed_imports": None}
    return none | CodePolicy.from_options(level, None, block, None, ()).make_declaration()


def _names(value: Any) -> list[str] | None:
    return [name for name in value if isinstance(name, str)] if is_array(value) else None
