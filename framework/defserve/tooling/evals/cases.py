"""The cases of a suite: a `*.eval.yaml` file, or JSON lines with a case a line.

    runs: 5
    cases:
      - name: by author
        prompt: Which books by Lem do we have?
        expect: {find_books: {text: {contains: lem}}}

A file is read strictly. A name that nobody knows is an error before the first request: a misspelt matcher must not
become a case that always fails, and a misspelt tool not one that costs money first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args
from unicodedata import normalize

from defserve.base.yaml_values import UnsupportedYaml, parse_yaml
from defserve.core.json_values import find_limit_violation, is_array, is_object
from defserve.core.shapes import is_number
from defserve.errors import UsageError, did_you_mean

MAX_SUITE_BYTES: Final = 4 * 1024 * 1024
MAX_DEPTH: Final = 24
MAX_CASES: Final = 2_000
MAX_RUNS: Final = 200
MAX_TURNS: Final = 8
DEFAULT_RUNS: Final = 5
DEFAULT_MIN_PASS_RATE: Final = 0.8
"""The share of runs that must pass."""

SUITE_SUFFIXES: Final = (".eval.yaml", ".eval.yml", ".eval.jsonl")
Combination: TypeAlias = Literal["any", "all", "in_order", "none"]
COMBINATIONS: Final[tuple[str, ...]] = get_args(Combination)[:3]

MATCHERS: Final = ("one_of", "contains", "like", "min", "max", "type", "absent")
JSON_TYPES: Final = ("string", "integer", "number", "boolean", "object", "array", "null")


class ExpectedCall(NamedTuple):
    """A tool, and what its arguments must fit. Arguments that are not named may be anything that the schema allows."""

    tool: str
    arguments: Mapping[str, Any]


class Expectation(NamedTuple):
    """The calls that are right: any of these, all of them, all in this order, or none at all."""

    combination: Combination
    calls: tuple[ExpectedCall, ...] = ()

    @property
    def label(self) -> str:
        """What stands in a table: the tools, or `none`."""
        mark = {"any": " | ", "all": " + ", "in_order": " > "}.get(self.combination, "")
        return mark.join(dict.fromkeys(call.tool for call in self.calls)) or "none"


class CannedResult(NamedTuple):
    """What an expected call is answered with: a value of the file, or what the tool really returns."""

    value: Any = None
    is_real: bool = False


class EvalTurn(NamedTuple):
    """One request to the model. `say` is the person's next message. Without a `result` it is the last turn."""

    expect: Expectation
    say: str | None = None
    result: CannedResult | None = None


class GivenMessage(NamedTuple):
    """A message that stands before the first turn."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class EvalCase:
    """One question with its right answers."""

    name: str
    messages: tuple[GivenMessage, ...]
    turns: tuple[EvalTurn, ...]
    forbid: frozenset[str] = frozenset()
    tags: tuple[str, ...] = ()
    weight: float = 1.0
    runs: int = DEFAULT_RUNS
    least: float = DEFAULT_MIN_PASS_RATE
    allows_refusal: bool = False

    @property
    def expected(self) -> str:
        return " > ".join(turn.expect.label for turn in self.turns)

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that are expected, each once."""
        return tuple(dict.fromkeys(call.tool for turn in self.turns for call in turn.expect.calls))

    @property
    def prompt(self) -> str:
        """What the person says, in all turns."""
        said = [message.text for message in self.messages if message.role == "user"]
        return "\n".join([*said, *(turn.say for turn in self.turns if turn.say)])


@dataclass(frozen=True, slots=True)
class EvalSuite:
    """The cases of a file. `server` and `model` are what pytest uses; `prices` are money for a million tokens."""

    path: Path
    cases: tuple[EvalCase, ...]
    now: str | None = None
    prices: Mapping[str, tuple[float, float]] | None = None
    server: str | None = None
    model: str | None = None

    @property
    def stem(self) -> str:
        """The name of the file without its suffix: `shelf` of `shelf.eval.yaml`."""
        name = self.path.name
        return next((name.removesuffix(end) for end in SUITE_SUFFIXES if name.endswith(end)), self.path.stem)

    def locate_server(self) -> str:
        """The server that the suite names. A file is looked for beside the suite."""
        named = self.server or ""
        path, suffix, variable = named.partition(".py")
        beside = self.path.parent / f"{path}.py"
        return f"{beside}{variable}" if suffix and beside.is_file() else named


def read_suite(path: Path) -> EvalSuite:
    """The suite of a file. Raises UsageError with the case that is wrong."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SUITE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", fix="name a *.eval.yaml file") from None
    if len(data) > MAX_SUITE_BYTES:
        raise UsageError(f"{path} has more than {MAX_SUITE_BYTES >> 20} MiB", fix="split it into several suites")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8", fix="save it as UTF-8") from None
    return parse_suite(text, path)


def parse_suite(text: str, path: Path) -> EvalSuite:
    """The same for a text that was read already."""
    if path.suffix == ".jsonl":
        return _make_suite({"cases": [_parse_line(line, f"{path}:{at}") for at, line in _iter_lines(text)]}, path)
    try:
        value = parse_yaml(text, str(path), max_depth=MAX_DEPTH)
    except UnsupportedYaml as error:
        raise UsageError(f"{path}: {error}", fix="write plain YAML, as in the guide on evals") from None
    except Exception as error:  # PyYAML's own, which must not be imported for its name alone
        raise UsageError(
            f"{path} is not YAML: {error}",
            fix='check the indentation of that line; inside {…} put texts with ? : , into "quotes"',
        ) from None
    if is_array(value):
        value = {"cases": value}
    if not is_object(value):
        raise UsageError(f"{path} holds no cases", fix="begin with `cases:` and a list")
    return _make_suite(value, path)


def _iter_lines(text: str) -> Iterator[tuple[int, str]]:
    # Not `splitlines`: texts of JSON may hold what ends a line elsewhere, such as U+2028.
    return ((at, line) for at, line in enumerate(text.split("\n"), 1) if line.strip())


def _parse_line(line: str, where: str) -> Any:
    try:
        value = json.loads(line)
        problem = find_limit_violation(value, MAX_DEPTH, MAX_SUITE_BYTES)
    except RecursionError:
        value, problem = None, f"nested deeper than {MAX_DEPTH} levels"
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}", fix="write one case a line") from None
    if problem:
        raise UsageError(f"{where} cannot be read: {problem}", fix="write a plain case, as in the guide on evals")
    return value


def _make_suite(value: Mapping[str, Any], path: Path) -> EvalSuite:
    reader = _Members(value, str(path))
    reader.require_known(("runs", "least", "now", "prices", "server", "model", "cases"))
    runs = reader.read("runs", DEFAULT_RUNS, _is_run_count, f"a number from 1 to {MAX_RUNS}")
    least = reader.read("least", DEFAULT_MIN_PASS_RATE, _is_share, "a share from 0 to 1")
    cases = reader.read("cases", [], is_array, "a list")
    if len(cases) > MAX_CASES:
        raise UsageError(f"{path} has more than {MAX_CASES} cases", fix="split it into several suites")
    made = tuple(_make_case(case, f"{path}: case {at}", runs, least) for at, case in enumerate(cases, 1))
    names: set[str] = set()
    for case in made:
        if case.name in names:
            raise UsageError(f"{path}: two cases are called {case.name!r}", fix="give each a name of its own")
        names.add(case.name)
    now = reader.read("now", None, lambda value: value is None or isinstance(value, str), "a date such as 2026-11-18")
    texts = {
        name: reader.read(name, None, lambda value: value is None or isinstance(value, str), "a text")
        for name in ("server", "model")
    }
    return EvalSuite(path, made, now, _read_prices(reader), **texts)


def _read_prices(reader: _Members) -> dict[str, tuple[float, float]] | None:
    """Model → money for a million tokens in and out."""
    given = reader.read("prices", None, lambda value: value is None or is_object(value), "models with two prices")
    if given is None:
        return None
    prices: dict[str, tuple[float, float]] = {}
    for model, pair in given.items():
        if not (is_array(pair) and len(pair) == 2 and all(is_number(price) and price >= 0 for price in pair)):
            raise UsageError(
                f"{reader.where}: prices: {model}: not two prices", fix=f"write {model}: [0.25, 2.0], for a million"
            )
        prices[str(model)] = (float(pair[0]), float(pair[1]))
    return prices


CASE_MEMBERS: Final = (
    *("name", "prompt", "messages", "turns", "expect", "result"),
    *("forbid", "tags", "weight", "runs", "least", "refusal"),
)


def _make_case(value: Any, where: str, runs: int, least: float) -> EvalCase:
    if not is_object(value):
        raise UsageError(f"{where} is not an object", fix="write {name: …, prompt: …, expect: …}")
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"{where} has no name", fix="add `name:` with a few words")
    reader = _Members(value, f"{where} ({name})")
    reader.require_known(CASE_MEMBERS)
    turns = _read_turns(reader)
    messages = _read_messages(reader)
    if not any(message.role == "user" for message in messages) and turns[0].say is None:
        raise UsageError(f"{reader.where} asks nothing", fix="add `prompt:`, or `messages:` with a user's message")
    refusal = reader.read("refusal", None, lambda value: value in (None, "ok"), "`ok`")
    return EvalCase(
        normalize("NFC", name.strip()),
        messages,
        turns,
        frozenset(_read_texts(reader, "forbid")),
        _read_texts(reader, "tags"),
        float(reader.read("weight", 1.0, lambda value: is_number(value) and 0 < value <= 1000, "a number above 0")),
        reader.read("runs", runs, _is_run_count, f"a number from 1 to {MAX_RUNS}"),
        float(reader.read("least", least, _is_share, "a share from 0 to 1")),
        refusal == "ok",
    )


def _read_messages(reader: _Members) -> tuple[GivenMessage, ...]:
    prompt, given = reader.value.get("prompt"), reader.value.get("messages")
    if prompt is not None and given is not None:
        raise UsageError(f"{reader.where} has both `prompt` and `messages`", fix="keep one of them")
    if prompt is not None:
        return (GivenMessage("user", _text(prompt, f"{reader.where}: prompt")),)
    messages: list[GivenMessage] = []
    if given is not None and not is_array(given):
        raise UsageError(
            f"{reader.where}: `messages` is not a list", fix="write a list of {user: …} and {assistant: …}"
        )
    for one in given or ():
        role = next(iter(one), "") if is_object(one) and len(one) == 1 else ""
        if role not in ("user", "assistant"):
            raise UsageError(f"{reader.where}: a message is not one", fix="write {user: …} or {assistant: …}")
        messages.append(GivenMessage(role, _text(one[role], f"{reader.where}: {role}")))
    return tuple(messages)


def _read_turns(reader: _Members) -> tuple[EvalTurn, ...]:
    given = reader.value.get("turns")
    if given is None:
        if "expect" not in reader.value:
            raise UsageError(f"{reader.where} expects nothing", fix="add `expect:` with a tool, or `expect: none`")
        return (
            _make_turn(_Members({k: reader.value[k] for k in ("expect", "result") if k in reader.value}, reader.where)),
        )
    if "expect" in reader.value or "result" in reader.value:
        raise UsageError(f"{reader.where} has `turns`, and `expect` or `result` beside them", fix="put it into a turn")
    if not is_array(given) or not 0 < len(given) <= MAX_TURNS:
        raise UsageError(f"{reader.where}: `turns` is not a list of 1 to {MAX_TURNS}", fix="write a list of turns")
    turns: list[EvalTurn] = []
    for at, one in enumerate(given, 1):
        where = f"{reader.where}: turn {at}"
        if not is_object(one) or "expect" not in one:
            raise UsageError(f"{where} expects nothing", fix="write {say: …, expect: …}")
        turns.append(_make_turn(_Members(one, where)))
        if at < len(given) and turns[-1].result is None:
            raise UsageError(f"{where} has no `result`, so the next turn cannot follow", fix="add `result:`")
    return tuple(turns)


def _make_turn(reader: _Members) -> EvalTurn:
    reader.require_known(("expect", "say", "result"))
    say = reader.value.get("say")
    result = None
    if "result" in reader.value:
        value = reader.value["result"]
        result = CannedResult(is_real=True) if value == "real" else CannedResult(value)
    return EvalTurn(
        _make_expectation(reader.value["expect"], reader.where),
        None if say is None else _text(say, f"{reader.where}: say"),
        result,
    )


def _make_expectation(value: Any, where: str) -> Expectation:
    if value == "none":
        return Expectation("none")
    if is_object(value) and len(value) == 1:
        ((kind, several),) = value.items()
        if kind in COMBINATIONS and is_array(several):
            calls = tuple(_make_expected_call(one, where) for one in several)
            if not calls:
                raise UsageError(f"{where}: `{kind}` is empty", fix="name a tool, or write `expect: none`")
            return Expectation(_COMBINATION_BY_NAME[kind], calls)
    return Expectation("any", (_make_expected_call(value, where),))


_COMBINATION_BY_NAME: Final[Mapping[str, Combination]] = {"any": "any", "all": "all", "in_order": "in_order"}


def _make_expected_call(value: Any, where: str) -> ExpectedCall:
    if isinstance(value, str) and value:
        return ExpectedCall(value, {})
    if not is_object(value) or len(value) != 1:
        fix = "write a tool, {tool: arguments}, or {any: […]}, {all: […]}, {in_order: […]}"
        raise UsageError(f"{where}: `expect` is not a call", fix=fix)
    ((tool, arguments),) = value.items()
    if not is_object(arguments := {} if arguments is None else arguments):
        raise UsageError(f"{where}: the arguments of {tool} are not an object", fix="write {tool: {name: value}}")
    for name, expected in arguments.items():
        _check_matchers(expected, f"{where}: {tool}.{name}")
    return ExpectedCall(tool, arguments)


def is_matcher(value: Any) -> bool:
    """Whether an expected value is a matcher: an object that has nothing but names of matchers."""
    return is_object(value) and bool(value) and value.keys() <= set(MATCHERS)


# Matcher → whether its value makes sense, and what it should be.
_MATCHER_VALUES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "one_of": (lambda value: is_array(value) and bool(value), "a list"),
    "contains": (lambda value: value is not None and not is_object(value), "a text, or a value of the list"),
    "like": (lambda value: isinstance(value, str), "a text"),
    "min": (is_number, "a number"),
    "max": (is_number, "a number"),
    "type": (lambda value: value in JSON_TYPES, f"one of {', '.join(JSON_TYPES)}"),
    "absent": (lambda value: value is True, "true"),
}


def _check_matchers(value: Any, where: str) -> None:
    if is_matcher(value):
        for name, given in value.items():
            is_right, what = _MATCHER_VALUES[name]
            if not is_right(given):
                raise UsageError(f"{where}: {name} is {given!r}", fix=f"give it {what}")
        for below in value.get("one_of", ()):
            _check_matchers(below, where)
    elif is_object(value):
        for name, below in value.items():
            _check_matchers(below, f"{where}.{name}")
    elif is_array(value):
        for at, below in enumerate(value):
            _check_matchers(below, f"{where}[{at}]")


# -- Whether a suite fits the tools that a server lists.


def collect_suite_warnings(suite: EvalSuite, tools: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Warnings about cases. Raises UsageError for a tool or an argument that the server does not have."""
    warnings: list[str] = []
    for case in suite.cases:
        where = f"{suite.path}: {case.name}"
        for name in (*case.tools, *sorted(case.forbid)):
            if name not in tools:
                raise UsageError(f"{where}: the server has no tool {name!r}", fix=did_you_mean(name, tools))
        for turn in case.turns:
            for call in turn.expect.calls:
                if call.tool in tools:
                    _check_argument_names(call, tools[call.tool].get("inputSchema") or {}, where)
        words = case.prompt.casefold()
        named = [name for name in case.tools if "_" in name and name.casefold() in words]
        warnings += [f"{case.name}: the prompt names the tool {name}, so it measures nothing" for name in named]
    return warnings


def _check_argument_names(call: ExpectedCall, schema: Mapping[str, Any], where: str) -> None:
    properties: Any = schema.get("properties")
    if not is_object(properties) or "patternProperties" in schema or schema.get("additionalProperties"):
        return
    for name, expected in call.arguments.items():
        if name not in properties:
            raise UsageError(
                f"{where}: {call.tool} has no argument {name!r}", fix=did_you_mean(name, properties, "it takes none")
            )
        about: Any = properties[name]
        kind = about.get("type") if is_object(about) else None
        if is_object(expected) and not is_matcher(expected) and isinstance(kind, str) and kind != "object":
            wrong = next(key for key in expected if key not in MATCHERS)
            raise UsageError(
                f"{where}: {call.tool}.{name} is a {kind}, and {wrong!r} is no matcher",
                fix=did_you_mean(wrong, MATCHERS),
            )


# -- Members of an object in the file.


class _Members(NamedTuple):
    """An object of the file, and how errors call it."""

    value: Mapping[str, Any]
    where: str

    def require_known(self, names: tuple[str, ...]) -> None:
        for name in self.value:
            if name not in names:
                raise UsageError(f"{self.where}: {name!r} means nothing", fix=did_you_mean(name, names))

    def read(self, name: str, default: Any, is_right: Callable[[Any], bool], what: str) -> Any:
        value = self.value.get(name, default)
        if not is_right(value):
            raise UsageError(f"{self.where}: {name} is {value!r}", fix=f"give it {what}")
        return value


def _read_texts(reader: _Members, name: str) -> tuple[str, ...]:
    value = reader.value.get(name, ())
    several = (value,) if isinstance(value, str) else value
    if not is_array(several) or not all(isinstance(one, str) for one in several):
        raise UsageError(f"{reader.where}: {name} is not a list of texts", fix=f"write {name}: [one, two]")
    return tuple(several)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where} is not a text", fix='put it into "quotes"')
    return normalize("NFC", value)


def _is_run_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_RUNS


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1
