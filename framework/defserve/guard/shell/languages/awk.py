"""awk: patterns, printing, arithmetic, own functions. No commands, pipes, redirects, `getline` or environment.

A program is read word by word. Only known words pass, so what is left to decide is what `/` and `>` mean. A slash
divides after a value and else begins a regular expression. Where awks may differ on that, the program is refused, since
what one takes for a regular expression is code for another. `>` compares, except after `print` outside brackets, where
it writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from defserve.guard.shell.languages import bounds

_WORD = re.compile(
    r"""
    \s+
    | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)
    | (?P<text>"(?:[^"\\]|\\.)*")
    | (?P<name>[A-Za-z_]\w*)
    | (?P<mark>\*\*=?|\^=|[-+*/%<>=!]=|\+\+|--|&&|\|\||!~|[-+*/%^~<>=!?:;,(){}[\]$])
    """,
    re.VERBOSE | re.ASCII,
)
# A bracket that comes first belongs to the set (`[^]x]`), so what is taken is never given back.
_EXPRESSION = re.compile(r"/(?:[^/\\\[\]\n]|\\[^\n]|\[\^?+(?!\])(?:\[:\w+:\]|\\[^\]/\n]|[^\]\[/\\\n])++\])*+/")

_FUNCTIONS = frozenset(
    "atan2 cos exp gensub gsub index int length log match mktime rand sin split sprintf sqrt srand strftime strtonum"
    " sub substr systime tolower toupper and or xor compl lshift rshift asort asorti patsplit typeof isarray".split()
)
_CONDITIONS = frozenset("if while for".split())
_KEYWORDS = _CONDITIONS | frozenset(
    "BEGIN END else do break continue next nextfile exit delete in print printf function return".split()
)
# These reach files, processes, the environment or other functions.
_REFUSED = frozenset(
    "system close fflush getline ENVIRON PROCINFO SYMTAB FUNCTAB ARGV ARGC ERRNO func switch case"
    " default BEGINFILE ENDFILE".split()
)
_PAIRS = {")": "(", "]": "[", "}": "{"}
# After these, awks may differ on what a slash is.
_UNCLEAR = frozenset("++ -- length $ in delete next nextfile exit break continue return function condition)".split())


_TEXT = re.compile(r'"(?:[^"\\]|\\.)*+"')


def _is_endless(script: str) -> bool:
    """Whether a loop has no condition, counts very far, or a function calls itself."""
    for name, head in bounds.calls(script, "for", "while"):
        parts = head.split(";")
        condition = parts[1] if len(parts) == 3 else head
        if bounds.is_large(head) or bounds.is_true(condition) or (len(parts) == 3 and not condition.strip()):
            return name in ("for", "while")
    for found in re.finditer(r"\bfunction\s{1,9}(\w++)[^{]{0,200}\{", script):
        body = bounds.inside(script, found.end(), "{", "}")
        if any(True for _ in bounds.calls(body, found[1])):
            return True
    return False


def problem(script: str) -> str | None:
    """Why this program is not known to be harmless, or None."""
    if not script.strip():
        return "it is empty"
    if _is_endless(_TEXT.sub('""', script)):
        return "a loop without an end"
    if any(bounds.is_wide(text) for text in _TEXT.findall(script)):
        return "a format with a large width"
    return next(_problems(script), None)


def _problems(script: str) -> Iterator[str]:
    at, before, kind = 0, "", "mark"
    opened: list[str] = []
    called, defined = dict[str, None](), set[str]()
    printing: int | None = None
    while at < len(script):
        found = _WORD.match(script, at)
        if found and found["mark"] in ("/", "/="):
            value = _ends_value(before, kind)
            if before in _UNCLEAR or (value and found[0] == "/="):
                yield f"a slash after '{before.removeprefix('condition')}'"
            found = found if value else _EXPRESSION.match(script, at)
        if not found:
            yield f"'{script[at]}' at position {at}"
            return
        word, at = found[0], found.end()
        if not word.strip():
            continue
        if word in _REFUSED:
            yield f"'{word}'"
        if before == "function" and kind == "name":
            if not found["name"] or word in _FUNCTIONS | _KEYWORDS:
                yield f"a function of the name '{word}'"
            defined.add(word)
        if word == "(" and kind == "name" and script[found.start() - 1] != " " and before not in _FUNCTIONS | _KEYWORDS:
            called[before] = None
        if word == ">" and printing == len(opened):
            yield "'>' writes a file after print; compare in parentheses"
        if word in ("print", "printf"):
            printing = len(opened)
        elif word == ";" and printing == len(opened):
            printing = None
        if word in ("(", "[", "{"):
            opened.append("condition(" if word == "(" and before in _CONDITIONS else word)
        elif word in _PAIRS:
            last = opened.pop() if opened else ""
            if not last.endswith(_PAIRS[word]):
                yield f"'{word}' without its partner"
            printing = None if word == "}" else printing
            word = "condition)" if last == "condition(" else word
        before, kind = word, found.lastgroup or "expression"
    if opened:
        yield "a bracket that is not closed"
    # A function may be called before it is defined.
    for name in called:
        if name not in defined:
            yield f"'{name}' is not among the functions known to be harmless"


def _ends_value(word: str, kind: str) -> bool:
    """Whether a value ends with this word, so that a slash after it divides."""
    if kind == "name":
        return word not in _KEYWORDS and word != "length"
    return kind != "mark" or word in (")", "]")
