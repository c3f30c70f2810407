"""Rules about what a model reads, what tools may do, and what servers do on their own, by the words that they use."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any, Final

from defserve.base.hidden_characters import iter_hidden_character_notes as hidden_in
from defserve.core.json_values import is_array, is_mapping
from defserve.search.entries import make_listed_entry
from defserve.search.ranking import find_similar_tool_pairs
from defserve.tooling.lint.definitions import (
    ItemDefinition,
    LintFinding,
    ServerDefinitions,
    ToolParameter,
    make_finding,
    parse_function_source,
)

MAX_DESCRIPTION_LENGTH: Final = 1_000

# Every pair is compared; a longer list has other problems.
COMPARED: Final = 200
SAME_VERBS: Final = (
    frozenset({"get", "fetch", "read", "load", "retrieve", "show"}),
    frozenset({"list", "index", "enumerate"}),
    frozenset({"search", "find", "lookup", "query"}),
    frozenset({"create", "add", "new", "make"}),
    frozenset({"delete", "remove", "drop", "erase"}),
    frozenset({"update", "edit", "change", "modify", "set"}),
)


def find_missing_descriptions(found: ServerDefinitions) -> Iterator[LintFinding]:
    for item in found.items:
        if not item.description.strip():
            yield make_finding(
                item, "has no description", "write a docstring that says what it does and when to use it"
            )


def find_undescribed_parameters(found: ServerDefinitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        if bare := [p.name for p in tool.parameters if not (p.schema.get("description") or "$ref" in p.schema)]:
            yield make_finding(
                tool,
                f"{', '.join(map(repr, bare))} {'has' if len(bare) == 1 else 'have'} no description",
                f"add to the docstring: Args: {bare[0]}: what it means, with its unit or format",
            )


def vague_names(found: ServerDefinitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        if tool.name.lower() in VAGUE or len(tool.name) < 3:
            yield make_finding(tool, "has a name that says nothing", "use a verb and its object, such as search_orders")


def find_long_descriptions(found: ServerDefinitions) -> Iterator[LintFinding]:
    for item in found.items:
        if len(item.description) > MAX_DESCRIPTION_LENGTH:
            yield make_finding(
                item,
                f"has a description of {len(item.description)} characters",
                "models read it in every request: keep what helps to choose the tool, move the rest to a resource",
            )


def find_hidden_text(found: ServerDefinitions) -> Iterator[LintFinding]:
    for where, item, text in _iter_texts(found):
        if shown := [name for _, name in hidden_in(text) if not name.startswith("line break")]:
            yield _of(item, f"{where} contains {shown[0]}", "delete it: people do not see it, but models do")


def find_prompt_injections(found: ServerDefinitions) -> Iterator[LintFinding]:
    for where, item, text in _iter_texts(found):
        line = " ".join(text.split())
        for what, pattern in INJECTIONS:
            if phrase := pattern.search(line):
                problem = f"{where} {what}: “{phrase[0][:80]}”"
                yield _of(item, problem, "describe what the tool does, and nothing else")


def _iter_texts(found: ServerDefinitions) -> Iterator[tuple[str, ItemDefinition | None, str]]:
    yield "instructions", None, found.instructions
    for item in found.items:
        for where, text in item.iter_model_texts():
            yield where, item, text


def _of(item: ItemDefinition | None, problem: str, fix: str) -> LintFinding:
    return make_finding(item, problem, fix) if item is not None else LintFinding("the server", "", problem, fix)


def find_similar_tools(found: ServerDefinitions) -> Iterator[LintFinding]:
    """By name, or by the words that few other tools have: what a model could mix up, it tells apart by the rest."""
    compared = found.tools[:COMPARED]
    meant = {tool.name: _means(tool.name) for tool in compared}
    close = {
        (pair.one.name, pair.other.name): pair.shared
        for pair in find_similar_tool_pairs([make_listed_entry(tool.wire) for tool in compared])
    }
    for one, other in combinations(compared, 2):
        if meant[one.name] == meant[other.name]:
            yield make_finding(
                other, f"has nearly the same name as {one.name!r}", "keep one, or choose names that differ"
            )
        elif shared := close.get((one.name, other.name)):
            words = ", ".join(f'"{word}"' for word in shared)
            yield make_finding(
                other,
                f"is close to {one.name!r}: both say {words}",
                "keep one, or say when to use which; `defserve eval` measures whether models tell them apart",
            )


def _means(name: str) -> frozenset[str]:
    """The words of a name, without their order and with one verb for all that mean the same."""
    known = split_identifier(name)
    same = next((min(verbs) for verbs in SAME_VERBS for word in known if word in verbs), None)
    nouns = {word.removesuffix("s") for word in known if not any(word in verbs for verbs in SAME_VERBS)}
    return frozenset({*nouns, f"<{same}>"}) if same and nouns else frozenset({name})


# -- Rules about what a tool may do, what it says about that, and what guards it.


def find_unguarded_parameters(found: ServerDefinitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        for parameter in tool.parameters if not tool.trusts else ():
            if (guard := _guard_for(parameter)) and not parameter.guarded and parameter.takes_text:
                yield make_finding(
                    tool,
                    f"takes {parameter.name!r} as plain text, and nothing checks it",
                    f"annotate it with {guard}, or set validator='none' in its mark if you check it yourself",
                )


def _guard_for(parameter: ToolParameter) -> str | None:
    named = split_identifier(parameter.name)
    if not named or named[-1] in HARMLESS or (named[-1] == "code" and CODES & set(named[-2:-1])):
        return None
    return TELLING.get(named[-1])


def find_unmarked_tools(found: ServerDefinitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        if (harm := _harm(tool.name)) and not tool.security and tool.annotations.get("destructiveHint") is not True:
            yield make_finding(
                tool,
                f"{harm}, judging by its name, and has no mark",
                "put @dangerous(…) or @moderate(…) above its def, so that it is confirmed and clients know;"
                " if it asks by itself, use @dangerous(…, confirm=False)",
            )


def _harm(name: str) -> str | None:
    named = split_identifier(name)
    if DESTROYS & set(named[:1]):
        return "destroys something"
    if (RUNS & set(named[:1]) and RUN_WHAT & set(named[1:])) or (len(named) == 1 and named[0] in RUNS):
        return "runs something"
    return None


def _says_read_only(tool: ItemDefinition) -> bool:
    return tool.annotations.get("readOnlyHint") is True


def _changes(tool: ItemDefinition) -> bool:
    return bool((DESTROYS | CHANGES) & set(split_identifier(tool.name)[:1])) or _harm(tool.name) is not None


# The problem, when it is one, and the fix.
CONTRADICTIONS: Final[tuple[tuple[str, Callable[[ItemDefinition], bool], str], ...]] = (
    (
        "has both readOnlyHint and destructiveHint",
        lambda tool: _says_read_only(tool) and tool.annotations.get("destructiveHint") is True,
        "remove the wrong one",
    ),
    (
        "has readOnlyHint, but its name says that it changes something",
        lambda tool: _says_read_only(tool) and _changes(tool) and tool.security.get("risk_level") != "safe",
        "remove the hint, or rename the tool",
    ),
    (
        "has readOnlyHint, but its mark says that it is dangerous or has effects",
        lambda tool: (
            _says_read_only(tool)
            and (tool.security.get("risk_level") == "dangerous" or bool(tool.security.get("side_effects")))
        ),
        "remove the hint, or correct the mark",
    ),
    (
        "is marked safe, but its name says that it does harm",
        lambda tool: tool.security.get("risk_level") == "safe" and _harm(tool.name) is not None,
        "mark it @moderate or @dangerous, or rename it",
    ),
    (
        "is marked dangerous and cannot be undone, but has destructiveHint: false",
        lambda tool: (
            tool.security.get("risk_level") == "dangerous"
            and not tool.security.get("reversible")
            and tool.annotations.get("destructiveHint") is False
        ),
        "remove the hint, or set reversible=True",
    ),
    (
        "uses the network, but has openWorldHint: false",
        lambda tool: (
            tool.annotations.get("openWorldHint") is False
            and (
                "network" in (tool.security.get("side_effects") or ())
                or any(str(p).startswith("network.") for p in tool.security.get("permissions_required") or ())
            )
        ),
        "remove the hint",
    ),
)


def find_wording_contradictions(found: ServerDefinitions) -> Iterator[LintFinding]:
    for tool in found.tools:
        for problem, holds, fix in CONTRADICTIONS:
            if holds(tool):
                yield make_finding(tool, problem, fix)


def find_unused_sets(found: ServerDefinitions) -> Iterator[LintFinding]:
    for one in found.feature_sets:
        if not one.declares:
            yield LintFinding(
                f"feature set {one.name!r}",
                "",
                "has nothing declared on it, so hosts are told that it may push and infer",
                'declare a tool or a hook on it, set uses=["pushEvents"] if you push from elsewhere, or remove it',
            )


# -- The words that rules look for: vague names, harmful verbs, phrases that give a model orders.


# Phrases of a description that do not describe the tool, but try to steer the model.
INJECTIONS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (what, re.compile(pattern, re.IGNORECASE))
    for what, pattern in (
        (
            "overrides instructions",
            r"\b(ignore|disregard|forget|override)\b[^.!?]{0,30}\b(previous|prior|above|earlier|all|any|other|system)\b"
            r"[^.!?]{0,30}\b(instructions?|prompts?|rules?|messages?|guidelines?)\b",
        ),
        (
            "hides something from the person",
            r"\b(do not|don't|never|without)\b[^.!?]{0,20}\b(tell|telling|inform|informing|mention|mentioning|notify|"
            r"notifying|reveal|revealing|show|showing|alert|alerting)\b[^.!?]{0,30}\b(users?|person|human|them|anyone)\b",
        ),
        (
            "pretends to be markup",
            r"<\s*+/?\s*+(important|system|instructions?|secret|admin|assistant|user)\s*+/?\s*+>",
        ),
        ("mentions the system prompt", r"\b(system prompt|hidden instructions?|developer message)\b"),
        ("gives the model a role", r"\b(you are now|act as|pretend (to be|you are)|from now on,? you)\b"),
        (
            "orders other calls",
            r"\b(before|after|instead of)\b[^.!?]{0,20}\b(using|calling|invoking|running)\b[^.!?]{0,30}"
            r"\b(this|any|other|another)\b[^.!?]{0,20}\btools?\b[^.!?]{0,80}\b(must|always|first|read|send|call|pass)\b",
        ),
        (
            "asks for secrets",
            r"\b(read|send|include|attach|upload|pass|provide|forward|exfiltrate)\b[^.!?]{0,40}"
            r"(\.ssh\b|id_rsa|\.env\b|\bapi[ _-]?keys?\b|\bpasswords?\b|\bcredentials?\b|\bprivate keys?\b"
            r"|\bconversation history\b|\bchat history\b)",
        ),
        ("is secretive", r"\b(secretly|covertly|silently (send|forward|copy|call))\b"),
    )
)


# -- Rules about servers that act on their own: what they inject, and what states they keep.


# What an injected text must not do, besides what no text for a model should.
ORDERS: Final = (
    *INJECTIONS,
    *(
        (what, re.compile(pattern, re.IGNORECASE | re.MULTILINE))
        for what, pattern in (
            ("gives orders", r"\byou (must|have to|are required to|shall|need to|should always)\b"),
            ("gives orders", r"\b(always|never) (answer|reply|respond|say|call|use|mention|follow)\b"),
            ("overrides instructions", r"\b(ignore|disregard|override) (the|your|all|any|every)\b"),
            ("speaks as somebody else", r"^\s*(system|user|assistant|human|developer)\s*:"),
        )
    ),
)

FIX_DENIED_INJECTION: Final = (
    "inject beside the user's message (leave positions= out), or move what needs more to a feature set of its own, so "
    "that the rest stays on"
)

SAFE: Final = 2**53

# The last word of a field's name, if it holds numbers of other services that are often past 2^53.
IDS: Final = frozenset({"id", "ids", "snowflake", "snowflakes", "nanoseconds", "ns"})
DEEPEST: Final = 20


def find_injected_orders(found: ServerDefinitions) -> Iterator[LintFinding]:
    for hook in found.hooks:
        told: set[str] = set()
        for text, line in _texts(hook.function):
            what, phrase = _order_in(text)
            if phrase and phrase not in told:
                told.add(phrase)
                yield LintFinding(
                    f"hook {hook.name!r} of {hook.feature_set!r}",
                    f"{hook.where.rpartition(':')[0]}:{line}" if hook.where else "",
                    f"injects a text that {what}: “{phrase}”",
                    "state facts and say where they come from; the host's instructions are not yours to change",
                )


def find_denied_sets(found: ServerDefinitions) -> Iterator[LintFinding]:
    for one in found.feature_sets:
        if one.denied and not one.only_lost:
            yield LintFinding(
                f"feature set {one.name!r}",
                "",
                f"is off at MCPL hosts of 0.5 with their default settings, which do not grant {', '.join(one.denied)}",
                FIX_DENIED_INJECTION,
            )


def _order_in(text: str) -> tuple[str, str]:
    """What a text does to a model's instructions, and its words for it; empty if it does nothing."""
    found = ((what, phrase) for what, pattern in ORDERS if (phrase := pattern.search(text)))
    return next(((what, " ".join(phrase[0].split())[:80]) for what, phrase in found), ("", ""))


def find_big_integers(found: ServerDefinitions) -> Iterator[LintFinding]:
    for state in found.states:
        for field in _big_fields(state.schema, "", state.schema, DEEPEST) if not state.chooses else ():
            yield LintFinding(
                f"state of {state.feature_set!r}",
                "",
                f"{field or 'its value'} may be past 2^53, which hosts written in JavaScript change",
                'say what should happen: set.state(…, big_integers="text"), or "refuse"',
            )


def find_sent_states(found: ServerDefinitions) -> Iterator[LintFinding]:
    for item in found.items:
        for name, kind in item.takes.items():
            for state in found.states:
                if kind is state.model:
                    yield make_finding(
                        item,
                        f"the caller has to send {name!r}: {kind.__name__} is the model of a state",
                        f"write {name}: State[{kind.__name__}], in a tool of the feature set {state.feature_set!r}",
                    )


# -- texts -----------------------------------------------------------------------------------------------
def _texts(function: Any) -> Iterator[tuple[str, int]]:
    """The texts that a function may return, with their lines: its literals, and the constants of its module."""
    written, first = parse_function_source(function)
    if written is None:
        return
    documented = ast.get_docstring(written, clean=False) is not None
    known: Mapping[str, Any] = getattr(function, "__globals__", {})
    for statement in written.body[1:] if documented else written.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.JoinedStr):
                yield (
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values),
                    (first + node.lineno - 1),
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value, first + node.lineno - 1
            elif isinstance(node, ast.Name) and isinstance(value := known.get(node.id), str):
                yield value, first + node.lineno - 1


# -- schemas ---------------------------------------------------------------------------------------------
def _big_fields(schema: Any, path: str, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    """The fields that may hold an integer past 2^53: by their bounds, or by a name that says so."""
    if not is_mapping(schema) or depth == 0:
        return
    if isinstance(reference := schema.get("$ref"), str):
        definitions: Mapping[str, Any] = root.get("$defs", {})
        yield from _big_fields(definitions.get(reference.rpartition("/")[2]), path, root, depth - 1)
    if schema.get("type") == "integer" and _may_be_big(schema, path):
        yield path
    properties = schema.get("properties")
    for name, below in properties.items() if is_mapping(properties) else ():
        yield from _big_fields(below, f"{path}.{name}" if path else name, root, depth - 1)
    for member in ("items", "additionalProperties"):
        yield from _big_fields(schema.get(member), path, root, depth - 1)
    for member in ("anyOf", "oneOf", "prefixItems"):
        branches = schema.get(member)
        for branch in branches if is_array(branches) else ():
            yield from _big_fields(branch, path, root, depth - 1)


def _may_be_big(schema: Mapping[str, Any], path: str) -> bool:
    bounds = [schema.get(name) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "default")]
    if any(isinstance(bound, int | float) and abs(bound) > SAFE for bound in bounds):
        return True
    is_bounded = schema.get("maximum") is not None or schema.get("exclusiveMaximum") is not None
    last = split_identifier(path.rpartition(".")[2])[-1:]
    return not is_bounded and bool(IDS.intersection(last))


VAGUE: Final = frozenset(
    """action api call check command data do exec execute foo func function get go handle handler helper info invoke
    manage misc my_tool new object op operation process query request result run send set stuff test thing tool
    tool1 update util utils work""".split()
)

# The first verb of a name → what it does to the world.
DESTROYS: Final = frozenset(
    """clear delete destroy drop erase format kill nuke overwrite purge remove reset revoke rm shutdown terminate
    truncate uninstall unlink wipe""".split()
)
CHANGES: Final = frozenset(
    """add append apply buy cancel charge commit create deploy edit insert install merge move order pay patch post
    publish push put rename replace save send set store transfer update upload write""".split()
)
RUNS: Final = frozenset({"eval", "evaluate", "exec", "execute", "run", "shell", "spawn"})
RUN_WHAT: Final = frozenset({"bash", "cmd", "code", "command", "process", "python", "script", "shell", "sql"})

# The last word of a parameter's name → the type that checks it.
TELLING: Final[Mapping[str, str]] = {
    **dict.fromkeys(("command", "cmd", "commandline", "shell"), "ShellCommand"),
    **dict.fromkeys(("url", "uri", "href", "webhook", "endpoint"), "PublicUrl"),
    **dict.fromkeys(("code", "script", "program", "snippet"), "Annotated[str, Code()]"),
    **dict.fromkeys(
        ("path", "file", "filename", "filepath", "directory", "dir", "folder"), "Annotated[Path, Within(root)]"
    ),
}

# Last words that mean something else: `url_id` names a row, `file_count` is a number.
HARMLESS: Final = frozenset({"id", "ids", "name", "type", "kind", "count", "size", "format", "extension", "status"})

# `country_code` is not a program.
CODES: Final = frozenset(
    """area bar bank country coupon currency dial discount error exit hs http iata icao language lang locale
    order pass phone pin post postal product promo qr region response return sort state status swift tax ticker
    time verification voucher zip""".split()
)

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def split_identifier(name: str) -> list[str]:
    """`deleteUserFile`, `delete_user-file` → delete, user, file."""
    return [word.lower() for word in _WORD.findall(name)]
