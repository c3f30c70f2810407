"""The small languages that programs take as an operand: sed scripts, awk programs, jq filters, SQL.

Each `find_…_problem(script)` says why a script is not known to be harmless, or None. A script passes only if all of it
is read by a grammar that has no command which runs, reads or writes files, or shows the environment.

sed comes first: addresses and the commands that edit text. Not `e` (runs), `r`, `R` (read), `w`, `W` (write).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

# Most seds let `[/]` hide the mark, some do not. Where they differ, the script is refused. A bracket that comes first
# belongs to the set: `[]x]`. So what is taken is never given back (`?+`, `*+`).
_SET = r"\[\^?+\]?+(?:\[:\w+:\]|\[(?![:.=])|[^]/\[\\])*+\]"
_ADDRESS = re.compile(rf"\s*(?:\d+(?:~\d+)?|\$|/(?:[^/\\\[]|\\.|{_SET})*+/[IM]*)")
_SECOND = re.compile(rf"\s*,\s*+(?:[+~]\d+|{_ADDRESS.pattern})")
_SED_END = r"\s*(?:;|$|(?=\}))"
_BRACKETS = re.compile(r"\[\^?+\]?+(?:\[:\w+:\]|\[(?![:.=])|[^]\[])*+\]")

_SED_COMMANDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("{", re.compile("")),
    ("}", re.compile(_SED_END)),
    ("dDgGhHnNpPxzF=", re.compile(_SED_END)),
    ("lqQ", re.compile(rf"\s*+\d*{_SED_END}")),
    (":btT", re.compile(r"\s*+\w*\s*(?:;|$)")),
    # One line of text. A backslash at its end would take the next script for text, or not.
    ("aic", re.compile(r"(?:\s*\\)?[^\\]*(?:\\[^\\]+)*$")),
)


def find_sed_problem(script: str) -> str | None:
    """Why this script is not known to be harmless, or None."""
    at = 0
    if not script.strip():
        return "it is empty"
    while at < len(script):
        if script[at] in " \t;":
            at += 1
            continue
        if first := _ADDRESS.match(script, at):
            second = _SECOND.match(script, first.end())
            at = (second or first).end()
        while at < len(script) and script[at] in " \t!":
            at += 1
        if at == len(script):
            return "an address without a command"
        if script[at] == "b" and not first and _is_endless_branch(script, at):
            return "a loop without an end"
        end = _find_command_end(script, at)
        if end is None:
            return f"the command '{script[at]}' in this form"
        at = end
    return None


def _is_endless_branch(script: str, at: int) -> bool:
    """Whether the branch at `at`, which has no condition, goes back over commands that read no further line."""
    label = re.match(r"b\s*(\w+)", script[at:])
    start = re.search(rf":\s*{label[1]}\b", script[:at]) if label else None
    return start is not None and not re.search(r"[;{}\s\d$]N", script[start.end() : at])


def _find_command_end(script: str, at: int) -> int | None:
    """Where the command at `at` ends, or None if it is not known."""
    command = script[at]
    if command in "sy":
        return _find_substitution_end(script, at + 1, command)
    for letters, rest in _SED_COMMANDS:
        if command in letters:
            found = rest.match(script, at + 1)
            return found.end() if found else None
    return None


def _find_substitution_end(script: str, at: int, command: str) -> int | None:
    """`s/…/…/flags` without the flags `w` (writes) and `e` (runs)."""
    if at >= len(script) or (mark := script[at]).isalnum() or mark in "\\ \n;":
        return None
    part = rf"((?:[^\\{re.escape(mark)}]|\\.)*){re.escape(mark)}"
    found = re.compile(re.escape(mark) + part + part).match(script, at)
    if not found or "[" in _BRACKETS.sub("", re.sub(r"\\.", "x", found[1])):
        return None
    flags = re.compile((r"[gpiImM0-9]*" if command == "s" else "") + _SED_END).match(script, found.end())
    return flags.end() if flags else None


# -- awk: patterns, printing, arithmetic, own functions. No commands, pipes, redirects, `getline` or environment.
#
# A program is read word by word. Only known words pass, so what is left to decide is what `/` and `>` mean. A slash
# divides after a value and else begins a regular expression. Where awks may differ on that, the program is refused,
# since what one takes for a regular expression is code for another. `>` compares, except after `print` outside
# brackets, where it writes.


_AWK_WORD = re.compile(
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
_AWK_EXPRESSION = re.compile(r"/(?:[^/\\\[\]\n]|\\[^\n]|\[\^?+(?!\])(?:\[:\w+:\]|\\[^\]/\n]|[^\]\[/\\\n])++\])*+/")

_AWK_FUNCTIONS = frozenset(
    "atan2 cos exp gensub gsub index int length log match mktime rand sin split sprintf sqrt srand strftime strtonum"
    " sub substr systime tolower toupper and or xor compl lshift rshift asort asorti patsplit typeof isarray".split()
)
_AWK_CONDITIONS = frozenset("if while for".split())
_AWK_KEYWORDS = _AWK_CONDITIONS | frozenset(
    "BEGIN END else do break continue next nextfile exit delete in print printf function return".split()
)

# These reach files, processes, the environment or other functions.
_AWK_REFUSED = frozenset(
    "system close fflush getline ENVIRON PROCINFO SYMTAB FUNCTAB ARGV ARGC ERRNO func switch case"
    " default BEGINFILE ENDFILE".split()
)
_AWK_PAIRS = {")": "(", "]": "[", "}": "{"}

# After these, awks may differ on what a slash is.
_UNCLEAR = frozenset("++ -- length $ in delete next nextfile exit break continue return function condition)".split())

_AWK_TEXT = re.compile(r'"(?:[^"\\]|\\.)*+"')


def _has_endless_loop(script: str) -> bool:
    """Whether a loop has no condition, counts very far, or a function calls itself."""
    for name, head in find_calls(script, "for", "while"):
        parts = head.split(";")
        condition = parts[1] if len(parts) == 3 else head
        if is_large(head) or is_true(condition) or (len(parts) == 3 and not condition.strip()):
            return name in ("for", "while")
    for found in re.finditer(r"\bfunction\s{1,9}(\w++)[^{]{0,200}\{", script):
        body = read_brackets(script, found.end(), "{", "}")
        if any(True for _ in find_calls(body, found[1])):
            return True
    return False


def find_awk_problem(script: str) -> str | None:
    """Why this program is not known to be harmless, or None."""
    if not script.strip():
        return "it is empty"
    if _has_endless_loop(_AWK_TEXT.sub('""', script)):
        return "a loop without an end"
    if any(has_large_width(text) for text in _AWK_TEXT.findall(script)):
        return "a format with a large width"
    return next(_find_awk_problems(script), None)


def _find_awk_problems(script: str) -> Iterator[str]:
    at, before, kind = 0, "", "mark"
    opened: list[str] = []
    called, defined = dict[str, None](), set[str]()
    printing: int | None = None
    while at < len(script):
        found = _AWK_WORD.match(script, at)
        if found and found["mark"] in ("/", "/="):
            value = _ends_value(before, kind)
            if before in _UNCLEAR or (value and found[0] == "/="):
                yield f"a slash after '{before.removeprefix('condition')}'"
            found = found if value else _AWK_EXPRESSION.match(script, at)
        if not found:
            yield f"'{script[at]}' at position {at}"
            return
        word, at = found[0], found.end()
        if not word.strip():
            continue
        if word in _AWK_REFUSED:
            yield f"'{word}'"
        if before == "function" and kind == "name":
            if not found["name"] or word in _AWK_FUNCTIONS | _AWK_KEYWORDS:
                yield f"a function of the name '{word}'"
            defined.add(word)
        if (
            word == "("
            and kind == "name"
            and script[found.start() - 1] != " "
            and before not in _AWK_FUNCTIONS | _AWK_KEYWORDS
        ):
            called[before] = None
        if word == ">" and printing == len(opened):
            yield "'>' writes a file after print; compare in parentheses"
        if word in ("print", "printf"):
            printing = len(opened)
        elif word == ";" and printing == len(opened):
            printing = None
        if word in ("(", "[", "{"):
            opened.append("condition(" if word == "(" and before in _AWK_CONDITIONS else word)
        elif word in _AWK_PAIRS:
            last = opened.pop() if opened else ""
            if not last.endswith(_AWK_PAIRS[word]):
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
        return word not in _AWK_KEYWORDS and word != "length"
    return kind != "mark" or word in (")", "]")


# -- jq: paths, operators and the functions that compute. Not `env`, `$ENV`, modules, and what names files or stops jq.


_JQ_FUNCTIONS = frozenset(
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
_JQ_RESERVED = frozenset(
    "env input_filename halt halt_error modulemeta import include get_search_list get_prog_origin get_jq_origin"
    " builtins stderr def".split()
)
_JQ_KEYWORDS = frozenset("and as catch elif else end foreach if label break or reduce then try null true false".split())
_JQ_PAIRS = {")": "(", "]": "[", "}": "{", "end": "if"}
_JQ_NAME = r"[A-Za-z_]\w*"
_JQ_TOKEN = re.compile(
    rf"""
    \s+
    | (?P<quote>")
    | (?P<field>\.{_JQ_NAME} | \.\.)
    | (?P<variable>\$\s*{_JQ_NAME})
    | (?P<format>@[a-z0-9]+)
    | \d+(?:\.\d*)?(?:[eE][-+]?\d+)? | \.\d+
    | (?P<name>{_JQ_NAME})
    | [\[({{\])}}]
    | //=? | [|+*/%-]?= | == | != | [<>]=? | \?// | [|,.?:;+*/%-]
    """,
    re.VERBOSE | re.ASCII,
)

# `def name:`, `def name(f; $x):`.
_DEFINITION = re.compile(rf"\s+{_JQ_NAME}\s*(?:\(\s*\$?{_JQ_NAME}\s*(?:;\s*\$?{_JQ_NAME}\s*)*\)\s*)?:", re.ASCII)
_KEY_END = re.compile(r"\s*(?:[:,}]|\Z)", re.ASCII)
_KEY = re.compile(rf"[{{,]\s*({_JQ_NAME})(?=\s*[:,}}])", re.ASCII)
_FORMATS = frozenset("@text @json @html @uri @urid @csv @tsv @sh @base64 @base64d @base32 @base32d".split())


def find_jq_problem(script: str) -> str | None:
    """Why this filter of jq is not known to be harmless, or None."""
    return _find_filter_problem(script, _JQ_FUNCTIONS)


def find_yq_problem(script: str) -> str | None:
    """Why this expression is not known to be harmless, whichever yq reads it, or None."""
    if re.search(r'\\"', script):
        return "a backslash before a quote, which ends the text for some versions of yq only"
    if found := next((name for name in _KEY.findall(_JQ_TEXT.sub('""', script)) if _YQ_CALLS.search(name)), None):
        return f"'{found}' as a key; write it as a text: \"{found}\""
    if re.search(r"\bdef\b", script):
        return "a definition"
    return _find_filter_problem(script, _YQ_FUNCTIONS)


def _find_filter_problem(script: str, functions: frozenset[str]) -> str | None:
    if _may_never_end(_JQ_TEXT.sub('""', script)):
        return "what may never end"
    at, before, opened, defined = 0, "", list[str](), set[str]()
    within: list[tuple[str, int]] = []
    while at < len(script):
        found = _JQ_TOKEN.match(script, at)
        if not found:
            return f"'{script[at]}' at position {at}"
        token, at = found[0], found.end()
        if not token.strip():
            continue
        # With a bracket behind it, it is a call.
        key = found["name"] and opened[-1:] == ["{"] and before in ("{", ",") and _KEY_END.match(script, at)
        if found["quote"]:
            at, inside = _find_text_end(script, at)
            opened += ["\\("] if inside else []
        elif token in _JQ_PAIRS and not key:
            last = opened.pop() if opened else ""
            if not last.endswith(_JQ_PAIRS[token]):
                return f"'{token}' without its partner"
            if last == "\\(":
                at, inside = _find_text_end(script, at)
                opened += ["\\("] if inside else []
                token = '"'
        elif token in _JQ_PAIRS.values() and not key:
            # Between `if` and `end` a comma separates values, even in an object.
            opened.append(token)
        elif token == "def" and not key:
            head = _DEFINITION.match(script, at)
            names = re.findall(r"\w+", head[0]) if head else []
            if (
                not head
                or opened[-1:] == ["{"]
                or not _JQ_RESERVED.isdisjoint(names)
                or not _JQ_KEYWORDS.isdisjoint(names)
            ):
                return "a definition in this form"
            defined.update(names)
            within.append((names[0], len(opened)))
            at = head.end()
        elif not key and token not in defined and (why := _find_word_problem(found, functions)):
            return why
        elif not key and token in {name for name, _ in within}:
            return f"'{token}' calls itself"
        elif token == ";" and within and within[-1][1] == len(opened):
            within.pop()
        if at < 0:
            return "a text that does not end"
        before = token
    return "a bracket that is not closed" if opened else None


_JQ_TEXT = re.compile(r'"(?:[^"\\]|\\[^(])*+"')
_REPEATED = re.compile(r"\*\s{0,9}(?:\d{6}|\d{1,6}[eE])|(?:\d{6}|\d[eE]\+?\d)\s{0,9}\*")


def _may_never_end(script: str) -> bool:
    """Whether it counts very far, has a condition that never changes, or repeats a text very often."""
    for name, head in find_calls(script, "range", "limit", "until", "while", "recurse", "first", "nth"):
        first, _, rest = head.partition(";")
        step = rest.rpartition(";")[2] if ";" in rest else "1"
        if name in ("range", "limit") and (is_large(head) or not step.strip(" 0.-")):
            return True
        if "infinite" in script and name != "recurse":
            return True
        if (name, first.strip()) in (("until", "false"), ("until", "null"), ("while", "true"), ("while", "1")):
            return True
        # What makes no smaller value never comes to an end.
        if name == "recurse" and ";" not in head and not re.search(r"\.\w|\[|\.\.|select|empty|if", head):
            return True
    return _REPEATED.search(script) is not None


def _find_word_problem(found: re.Match[str], functions: frozenset[str]) -> str | None:
    if found["name"] and found[0] not in functions and found[0] not in _JQ_KEYWORDS:
        return f"'{found[0]}' is not among the functions known to be harmless"
    if found["variable"] and re.fullmatch(r"\$\s*(?:ENV|__prog\w*)", found[0]):
        return f"'{found[0]}'"
    if found["format"] and found[0] not in _FORMATS:
        return f"'{found[0]}'"
    return None


def _find_text_end(script: str, at: int) -> tuple[int, bool]:
    r"""Where a text ends, and whether it stops at `\(`, where an expression begins. -1: it does not end."""
    found = re.compile(r'(?:[^"\\]|\\[^(])*("|\\\()').match(script, at)
    return (found.end(), found[1] != '"') if found else (-1, False)


# -- Settings of yamllint. They may name a file of further settings, lines of which it shows if they are none.


# A value may go on in the next line, and an anchor lets another key have the same name.
_LINT_NAME = (
    r"[\"']?\s{0,9}:\s{1,9}(?:default|relaxed|([\"'])(?:default|relaxed)\1)"
    r"(?:[ \t]+#|[ \t]*+(?:[,}]|[\r\n]++(?![ \t])|\Z))"
)
_LINT_PLACE = re.compile(rf"\\|&\S|ignore-from-file|extends(?!{_LINT_NAME})")


def find_lint_settings_problem(text: str) -> str | None:
    """Why these settings may name a file, or None."""
    found = _LINT_PLACE.search(text)
    return f"'{found[0]}' may name a file of further settings" if found else None


# -- SQL for sqlite3: statements that ask and those that change data. Not what reaches other files, and no endless
# query.
#
# The command line of sqlite3 has functions that read, write and edit files, and commands that begin with a dot. A text
# passes only if it has none of them; of the dot commands, those that show the schema pass.


_SQL_TOKEN = re.compile(
    r"""
    \s+
    | --[^\n]*
    | /\*(?:[^*]|\*(?!/))*\*/
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\])
    | (?P<number>\d[\w.]*|\.\d+)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<mark>[-+*/%<>=!|&~(),.;?:@$]+?)
    """,
    re.VERBOSE | re.ASCII,
)
_SQL_DOT_COMMANDS = re.compile(
    r"\.(?:tables|indexes|indices|schema|dump|fullschema|databases|show|help|version|dbinfo|lint\ fkey-indexes)"
    r"(?:\ +[\w%_]+)?\s*|\.(?:headers?|mode|nullvalue|timer|width|separator|changes|eqp|explain)(?:\ +[\w,-]+)*\s*"
)
_SQL_QUERIES = frozenset("select with explain values pragma".split())
_SQL_CHANGES = frozenset(
    "insert update delete replace create alter begin commit end rollback savepoint release analyze reindex"
    " vacuum".split()
)

# They reach files, other data bases, code, or memory without a bound. `into` after `vacuum` writes a file.
_SQL_REFUSED = frozenset(
    """
    load_extension readfile writefile edit fsdir lsmode zipfile zipfile_cds sqlar_compress sqlar_uncompress attach
    detach virtual drop fts3_tokenizer generate_series zeroblob randomblob temp_store_directory data_store_directory
    writable_schema trusted_schema shell_add_schema sha3_query dbdata dbptr sqlite_dbpage
    """.split()
)
_SQL_PRAGMAS = frozenset(
    """
    table_info table_xinfo table_list index_list index_info index_xinfo foreign_key_list foreign_key_check
    integrity_check quick_check database_list collation_list compile_options function_list module_list user_version
    application_id schema_version encoding page_count page_size freelist_count journal_mode foreign_keys
    """.split()
)


def find_sql_problem(text: str) -> str | None:
    """Why this text is not known to be harmless, or None."""
    return _find_statement_problem(text, _SQL_QUERIES | _SQL_CHANGES)


def find_query_problem(text: str) -> str | None:
    """Why this text is not known to ask only, or None."""
    return _find_statement_problem(text, _SQL_QUERIES)


def _find_statement_problem(text: str, allowed: frozenset[str]) -> str | None:
    if text.lstrip().startswith("."):
        return None if _SQL_DOT_COMMANDS.fullmatch(text) else "a dot command that does more than show the schema"
    words, why = _read_sql_words(text)
    if why:
        return why
    begins, before = True, ""
    for statement in (list(group) for is_end, group in groupby(words, ";".__eq__) if not is_end):
        if statement[0] in ("delete", "with") and "delete" in statement and "where" not in statement:
            return "'delete' without 'where'"
    for word in words:
        if begins and word != ";":
            if word not in allowed:
                return f"a statement that begins with '{word}'"
            begins = False
        if word in _SQL_REFUSED or (before == "vacuum" and word not in (";", "")):
            return f"'{word}'"
        if before == "pragma" and word not in _SQL_PRAGMAS:
            return f"'pragma {word}'"
        if word == "pragma" and allowed is _SQL_QUERIES and "=" in words:
            return "a pragma that sets something"
        before, begins = word, word == ";"
    return _find_endless_table(words)


def _read_sql_words(text: str) -> tuple[list[str], str | None]:
    """The words in lower case, without texts; and why they cannot be read, or None."""
    at, words = 0, list[str]()
    while at < len(text):
        found = _SQL_TOKEN.match(text, at)
        if not found:
            return [], f"'{text[at]}' at position {at}"
        at = found.end()
        if found["text"] and has_large_width(found["text"]):
            return [], "a format with a large width"
        if found["quoted"]:
            words.append(found["quoted"][1:-1].lower())
        elif found["name"] or found["mark"]:
            words.append(found[0].lower())
        elif found["number"] or found["text"]:
            words.append("0")
    return words, None if words else "it is empty"


def _find_endless_table(words: list[str]) -> str | None:
    """A table that is made of itself may grow without an end."""
    for at, word in enumerate(words):
        if word != "as" or "with" not in words[:at]:
            continue
        start = next((one for one in range(at + 1, min(at + 4, len(words))) if words[one] == "("), None)
        if start is None:
            continue
        depth, end = 0, start
        for end in range(start, len(words)):
            depth += (words[end] == "(") - (words[end] == ")")
            if depth == 0:
                break
        head = [one for one in words[max(0, at - 40) : at] if re.fullmatch(r"\w+", one)]
        if (
            any(words[one] == "from" and words[one + 1] in head for one in range(start, end - 1))
            and "limit" not in words
        ):
            return "a recursive query without a limit"
    return None


# -- What plainly never ends, or prints without a bound, in a script. Other loops end with the time a command is given.


MAX_HEAD = 400
"""How many characters behind a bracket are looked at."""

_SPEC = re.compile(r"%([^A-Za-z%]*+)")
_LARGE = re.compile(r"\d{9}|\d[eE]\+?(?:[7-9]|\d\d)")


def has_large_width(text: str) -> bool:
    """Whether a format (`%5d`) asks for a width of four digits or more, or takes its width from elsewhere (`%*d`)."""
    return any("*" in found[1] or re.search(r"\d{4}", found[1]) for found in _SPEC.finditer(text))


def is_large(text: str) -> bool:
    """Whether a number of nine digits or more stands in this text."""
    return _LARGE.search(text) is not None


def is_true(condition: str) -> bool:
    """Whether a condition is always true: `1`, `!0`, `"a"`, `x == x`."""
    condition = condition.strip()
    left, equal, right = condition.partition("==")
    if equal:
        return left.strip() == right.strip()
    return condition in ("!0", "! 0", "true", '""') or (condition.isdecimal() and int(condition) != 0)


def find_calls(script: str, *names: str) -> Iterator[tuple[str, str]]:
    """Each of these names that is followed by a bracket, and what stands in the bracket."""
    for found in re.finditer(r"\b([A-Za-z_]\w*+)\s{0,9}\(", script):
        if found[1] in names:
            yield found[1], read_brackets(script, found.end(), "(", ")")


def read_brackets(script: str, at: int, opening: str, closing: str) -> str:
    """The text from `at`, which is behind an opening bracket, to its partner."""
    depth = 1
    for end in range(at, min(len(script), at + MAX_HEAD)):
        depth += (script[end] == opening) - (script[end] == closing)
        if not depth:
            return script[at:end]
    return script[at : at + MAX_HEAD]
