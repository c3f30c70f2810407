"""SQL for sqlite3: statements that ask and those that change data. Not what reaches other files, and no endless query.

The command line of sqlite3 has functions that read, write and edit files, and commands that begin with a dot. A text
passes only if it has none of them; of the dot commands, those that show the schema pass.
"""

from __future__ import annotations

import re

from defserve.guard.shell.languages import bounds

_TOKEN = re.compile(
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
_SHOWN = re.compile(
    r"\.(?:tables|indexes|indices|schema|dump|fullschema|databases|show|help|version|dbinfo|lint\ fkey-indexes)"
    r"(?:\ +[\w%_]+)?\s*|\.(?:headers?|mode|nullvalue|timer|width|separator|changes|eqp|explain)(?:\ +[\w,-]+)*\s*"
)
_ASKING = frozenset("select with explain values pragma".split())
_CHANGING = frozenset(
    "insert update delete replace create alter begin commit end rollback savepoint release analyze reindex"
    " vacuum".split()
)
# They reach files, other data bases, code, or memory without a bound. `into` after `vacuum` writes a file.
_REFUSED = frozenset(
    """
    load_extension readfile writefile edit fsdir lsmode zipfile zipfile_cds sqlar_compress sqlar_uncompress attach
    detach virtual drop fts3_tokenizer generate_series zeroblob randomblob temp_store_directory data_store_directory
    writable_schema trusted_schema shell_add_schema sha3_query dbdata dbptr sqlite_dbpage
    """.split()
)
_PRAGMAS = frozenset(
    """
    table_info table_xinfo table_list index_list index_info index_xinfo foreign_key_list foreign_key_check
    integrity_check quick_check database_list collation_list compile_options function_list module_list user_version
    application_id schema_version encoding page_count page_size freelist_count journal_mode foreign_keys
    """.split()
)


def problem(text: str) -> str | None:
    """Why this text is not known to be harmless, or None."""
    return _problem(text, _ASKING | _CHANGING)


def asking_problem(text: str) -> str | None:
    """Why this text is not known to ask only, or None."""
    return _problem(text, _ASKING)


def _problem(text: str, allowed: frozenset[str]) -> str | None:
    if text.lstrip().startswith("."):
        return None if _SHOWN.fullmatch(text) else "a dot command that does more than show the schema"
    words, why = _read(text)
    if why:
        return why
    begins, before = True, ""
    if words[0] == "delete" and "where" not in words:
        return "'delete' without 'where'"
    for word in words:
        if begins and word != ";":
            if word not in allowed:
                return f"a statement that begins with '{word}'"
            begins = False
        if word in _REFUSED or (before == "vacuum" and word not in (";", "")):
            return f"'{word}'"
        if before == "pragma" and word not in _PRAGMAS:
            return f"'pragma {word}'"
        if word == "pragma" and allowed is _ASKING and "=" in words:
            return "a pragma that sets something"
        before, begins = word, word == ";"
    return _endless(words)


def _read(text: str) -> tuple[list[str], str | None]:
    """The words in lower case, without texts; and why they cannot be read, or None."""
    at, words = 0, list[str]()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            return [], f"'{text[at]}' at position {at}"
        at = found.end()
        if found["text"] and bounds.is_wide(found["text"]):
            return [], "a format with a large width"
        if found["quoted"]:
            words.append(found["quoted"][1:-1].lower())
        elif found["name"] or found["mark"]:
            words.append(found[0].lower())
        elif found["number"] or found["text"]:
            words.append("0")
    return words, None if words else "it is empty"


def _endless(words: list[str]) -> str | None:
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
