"""jq: paths, operators and the functions that compute. Not `env`, `$ENV`, modules, and what names files or stops jq."""

from __future__ import annotations

import re

from defserve.guard.shell.languages import bounds

_FUNCTIONS = frozenset(
    """
    abs acos acosh add all any arrays ascii ascii_downcase ascii_upcase asin asinh atan atan2 atanh booleans bsearch
    capture cbrt ceil combinations contains cos cosh date dateadd datesub debug del delpaths empty endswith erf error
    exp exp10 exp2 explode fabs finites first flatten floor fmax fmin fmod from_entries fromdate fromdateiso8601
    fromjson fromstream getpath gmtime group_by gsub has have_decnum have_literal_numbers implode in index indices
    infinite input input_line_number inputs inside isempty isfinite isinfinite isnan isnormal isvalid iterables join
    keys keys_unsorted last ldexp length limit localtime log log10 log2 ltrim ltrimstr map map_values match max max_by
    min min_by mktime modf nan normals not now nth nulls numbers objects path paths pick pow pow10 range recurse
    recurse_down reverse rindex round rtrim rtrimstr scalars scan select setpath significand sin sinh skip sort
    sort_by split splits sqrt startswith strflocaltime strftime strings strptime sub tan tanh test to_entries toarray
    toboolean todate todateiso8601 tojson tonumber tostream tostring transpose trim trimstr trunc truncate_stream type
    unique unique_by until utf8bytelength values walk while with_entries
    """.split()
)
# Two programs have the name yq: one hands its filter to jq, the other has a language of its own, with `load`, `system`
# and `eval`. These names are harmless in both.
_YQ_FUNCTIONS = frozenset(
    """
    add all any ascii_downcase ascii_upcase capture ceil contains debug del delpaths downcase empty endswith error
    first flatten floor from_entries fromjson getpath group_by has in index inside join keys key kind last length line
    ltrimstr map map_values match max max_by min min_by not now nth numbers objects parent path paths pick range
    recurse reverse round rtrimstr scalars scan select setpath sort sort_by sort_keys split splits sqrt startswith
    strings style sub tag test to_entries to_json to_number to_string to_yaml todate tojson tonumber tostring trim type
    unique unique_by upcase utf8bytelength values with_entries
    """.split()
)
# What a key of an object may not be spelt like in yq, which reads some names as calls wherever they stand.
_YQ_CALLS = re.compile(r"load|env|eval|system|exec|file|input", re.IGNORECASE)
# These show the environment, name files, load modules or stop jq. A definition may not hide them: it ends somewhere.
_RESERVED = frozenset(
    "env input_filename halt halt_error modulemeta import include get_search_list get_prog_origin get_jq_origin"
    " builtins stderr def".split()
)
_KEYWORDS = frozenset("and as catch elif else end foreach if label break or reduce then try null true false".split())
_PAIRS = {")": "(", "]": "[", "}": "{", "end": "if"}
_NAME = r"[A-Za-z_]\w*"
_TOKEN = re.compile(
    rf"""
    \s+
    | (?P<quote>")
    | (?P<field>\.{_NAME} | \.\.)
    | (?P<variable>\$\s*{_NAME})
    | (?P<format>@[a-z0-9]+)
    | \d+(?:\.\d*)?(?:[eE][-+]?\d+)? | \.\d+
    | (?P<name>{_NAME})
    | [\[({{\])}}]
    | //=? | [|+*/%-]?= | == | != | [<>]=? | \?// | [|,.?:;+*/%-]
    """,
    re.VERBOSE | re.ASCII,
)
# `def name:`, `def name(f; $x):`.
_DEFINITION = re.compile(rf"\s+{_NAME}\s*(?:\(\s*\$?{_NAME}\s*(?:;\s*\$?{_NAME}\s*)*\)\s*)?:", re.ASCII)
_KEY_END = re.compile(r"\s*(?:[:,}]|\Z)", re.ASCII)
_KEY = re.compile(rf"[{{,]\s*({_NAME})(?=\s*[:,}}])", re.ASCII)
_FORMATS = frozenset("@text @json @html @uri @urid @csv @tsv @sh @base64 @base64d @base32 @base32d".split())


def problem(script: str) -> str | None:
    """Why this filter of jq is not known to be harmless, or None."""
    return _problem(script, _FUNCTIONS)


def yq_problem(script: str) -> str | None:
    """Why this expression is not known to be harmless, whichever yq reads it, or None."""
    if re.search(r'\\"', script):
        return "a backslash before a quote, which ends the text for some versions of yq only"
    if found := next((name for name in _KEY.findall(_TEXT.sub('""', script)) if _YQ_CALLS.search(name)), None):
        return f"'{found}' as a key; write it as a text: \"{found}\""
    if re.search(r"\bdef\b", script):
        return "a definition"
    return _problem(script, _YQ_FUNCTIONS)


def _problem(script: str, functions: frozenset[str]) -> str | None:
    if _is_endless(_TEXT.sub('""', script)):
        return "what may never end"
    at, before, opened, defined = 0, "", list[str](), set[str]()
    within: list[tuple[str, int]] = []
    while at < len(script):
        found = _TOKEN.match(script, at)
        if not found:
            return f"'{script[at]}' at position {at}"
        token, at = found[0], found.end()
        if not token.strip():
            continue
        # With a bracket behind it, it is a call.
        key = found["name"] and opened[-1:] == ["{"] and before in ("{", ",") and _KEY_END.match(script, at)
        if found["quote"]:
            at, inside = _text(script, at)
            opened += ["\\("] if inside else []
        elif token in _PAIRS and not key:
            last = opened.pop() if opened else ""
            if not last.endswith(_PAIRS[token]):
                return f"'{token}' without its partner"
            if last == "\\(":
                at, inside = _text(script, at)
                opened += ["\\("] if inside else []
                token = '"'
        elif token in _PAIRS.values() and not key:
            # Between `if` and `end` a comma separates values, even in an object.
            opened.append(token)
        elif token == "def" and not key:
            head = _DEFINITION.match(script, at)
            names = re.findall(r"\w+", head[0]) if head else []
            if not head or opened[-1:] == ["{"] or not _RESERVED.isdisjoint(names) or not _KEYWORDS.isdisjoint(names):
                return "a definition in this form"
            defined.update(names)
            within.append((names[0], len(opened)))
            at = head.end()
        elif not key and token not in defined and (why := _word_problem(found, functions)):
            return why
        elif not key and token in {name for name, _ in within}:
            return f"'{token}' calls itself"
        elif token == ";" and within and within[-1][1] == len(opened):
            within.pop()
        if at < 0:
            return "a text that does not end"
        before = token
    return "a bracket that is not closed" if opened else None


_TEXT = re.compile(r'"(?:[^"\\]|\\[^(])*+"')
_REPEATED = re.compile(r"\*\s{0,9}(?:\d{6}|\d{1,6}[eE])|(?:\d{6}|\d[eE]\+?\d)\s{0,9}\*")


def _is_endless(script: str) -> bool:
    """Whether it counts very far, has a condition that never changes, or repeats a text very often."""
    for name, head in bounds.calls(script, "range", "limit", "until", "while", "recurse", "first", "nth"):
        first, _, rest = head.partition(";")
        step = rest.rpartition(";")[2] if ";" in rest else "1"
        if name in ("range", "limit") and (bounds.is_large(head) or not step.strip(" 0.-")):
            return True
        if "infinite" in script and name != "recurse":
            return True
        if (name, first.strip()) in (("until", "false"), ("until", "null"), ("while", "true"), ("while", "1")):
            return True
        # What makes no smaller value never comes to an end.
        if name == "recurse" and ";" not in head and not re.search(r"\.\w|\[|\.\.|select|empty|if", head):
            return True
    return _REPEATED.search(script) is not None


def _word_problem(found: re.Match[str], functions: frozenset[str]) -> str | None:
    if found["name"] and found[0] not in functions and found[0] not in _KEYWORDS:
        return f"'{found[0]}' is not among the functions known to be harmless"
    if found["variable"] and re.fullmatch(r"\$\s*(?:ENV|__prog\w*)", found[0]):
        return f"'{found[0]}'"
    if found["format"] and found[0] not in _FORMATS:
        return f"'{found[0]}'"
    return None


def _text(script: str, at: int) -> tuple[int, bool]:
    r"""Where a text ends, and whether it stops at `\(`, where an expression begins. -1: it does not end."""
    found = re.compile(r'(?:[^"\\]|\\[^(])*("|\\\()').match(script, at)
    return (found.end(), found[1] != '"') if found else (-1, False)
