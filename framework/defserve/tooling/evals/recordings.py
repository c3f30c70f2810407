"""Recordings: what a model answered, in a file to commit, so that it can be judged again without the model.

The first line is the head: the model, and the definitions that it was given. Each other line is one answer:

    {"key": "…", "case": "by author", "run": 1, "turn": 1, "answer": {…}, "results": […], "usage": {…}}

The key is a hash of everything that the answer depends on: dialect, model, system text, messages, tools in their order,
parameters and the number of the run. No address, no header. So an answer is found only if exactly the same would be
asked again, and **a replay measures nothing new**: it proves that what is served is what was measured.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO, TypeAlias

from defserve.client.replies import object_or_empty
from defserve.core.json_values import is_array, is_object
from defserve.errors import DefserveError, UsageError
from defserve.tooling.evals.dialects import ModelRequest, ToolReply
from defserve.tooling.evals.endpoint import MIN_KEY_LENGTH, ModelName
from defserve.tooling.evals.judging import AnswerStop, ModelAnswer, ModelCall, TokenUsage

Json: TypeAlias = dict[str, Any]

FORMAT: Final = 1
FORMAT_KEY: Final = "defserve-eval"
MAX_RECORDING_BYTES: Final = 256 * 1024 * 1024
MAX_LINE_LENGTH: Final = 16 * 1024 * 1024
STOPS: Final[Mapping[str, AnswerStop]] = {
    "end": "end",
    "length": "length",
    "refused": "refused",
    "filtered": "filtered",
}


class StaleRecording(DefserveError):
    """A replay asks for answers that were not recorded. `cases` are those that ask."""

    def __init__(self, *cases: str) -> None:
        super().__init__(f"{', '.join(cases)}: not recorded with these definitions")
        self.cases = cases


class SecretInRecording(DefserveError):
    """A line would hold the value of a key. It is not written."""


class RecordingHead(NamedTuple):
    """What stands in the first line: the model, and what it was given in every request."""

    model: ModelName
    system: str
    tools: tuple[Json, ...]

    def to_wire(self) -> Json:
        dialect, name = self.model
        return {FORMAT_KEY: FORMAT, "dialect": dialect, "model": name, "system": self.system, "tools": list(self.tools)}


class RecordedAnswer(NamedTuple):
    """An answer, and what its calls were answered with. `tools` are those of the next request, if they are others."""

    answer: ModelAnswer
    replies: tuple[ToolReply, ...]
    case: str = ""
    tools: tuple[Json, ...] | None = None


def compute_model_request_key(dialect: str, request: ModelRequest, run: int | str) -> str:
    """The key of a request: the same for whoever would ask the same."""
    asked = {"format": FORMAT, "dialect": dialect, **request.to_wire(), "run": run}
    return sha256(json.dumps(asked, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def make_recording_path(folder: Path, stem: str, model: ModelName) -> Path:
    """`shelf.qwen3.jsonl`: a file a suite and model."""
    name = re.sub(r"[^a-zA-Z0-9._-]+", "-", model.name).strip(".-") or model.dialect
    return folder / f"{stem}.{name[:80]}.jsonl"


@dataclass(slots=True)
class Recording:
    """The answers of one file. `secrets` are values that must never be written."""

    path: Path
    head: RecordingHead | None = None
    secrets: tuple[str, ...] = ()
    answers: dict[str, RecordedAnswer] = field(default_factory=dict[str, RecordedAnswer])
    looks: int = 0
    """How often a suggestion was judged on the held-out half. Each time makes its figures less trustworthy."""
    _is_open: bool = False
    _is_new: bool = False
    """Whether the file still has to be begun with `head`."""
    _file: TextIO | None = None

    @property
    def cases(self) -> frozenset[str]:
        """The cases that have an answer."""
        return frozenset(answer.case for answer in self.answers.values())

    def find_answer(self, key: str) -> RecordedAnswer | None:
        return self.answers.get(key)

    def open_for_writing(self, head: RecordingHead) -> None:
        """Write what comes from now on. A recording of other definitions is started over: no answer of it fits.

        The file changes with the first answer. If the endpoint gives none, the old recording is still there.
        """
        self._is_new = self.head != head
        if self._is_new:
            self.answers.clear()
            self.head = head
        self._is_open = True

    def store_answer(self, key: str, case: str, run: int | str, turn: int, recorded: RecordedAnswer) -> None:
        """Write a line, at once: whoever is killed has lost nothing. Raises SecretInRecording."""
        self.answers[key] = recorded
        self._write_line({"key": key, "case": case, "run": run, "turn": turn, **encode_answer(recorded)})

    def count_held_out_look(self) -> int:
        """Count a look at the held-out half, in the file as well. Returns the count."""
        self.looks += 1
        self._write_line({"look": self.looks})
        return self.looks

    def _write_line(self, line: Json) -> None:
        if not self._is_open:
            return
        text = self._encode(line)
        if self._is_new and self.head is not None:
            beside = self.path.with_name(f".{self.path.name}.new")
            beside.write_text(self._encode(self.head.to_wire()), encoding="utf-8")
            os.replace(beside, self.path)
            self._is_new = False
        if self._file is None:
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write(text)
        self._file.flush()

    def close(self) -> None:
        self._is_open = False
        if self._file is not None:
            self._file.close()
            self._file = None

    def _encode(self, value: Json) -> str:
        text = json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n"
        for secret in self.secrets:
            if len(secret) >= MIN_KEY_LENGTH and json.dumps(secret)[1:-1] in text:
                raise SecretInRecording(
                    f"a line of {self.path} would hold the key that the endpoint was sent; nothing was written\n"
                    "  fix: use another endpoint, and another key: this one is known to it"
                )
        return text


def read_recording(path: Path, secrets: Sequence[str] = ()) -> Recording:
    """The recording of a file; an empty one if there is none. Raises UsageError for a file that is something else."""
    recording = Recording(path, secrets=tuple(secret for secret in secrets if secret))
    try:
        if path.stat().st_size > MAX_RECORDING_BYTES:
            raise UsageError(f"{path} has more than {MAX_RECORDING_BYTES >> 20} MiB", fix="split the suite")
        with path.open(encoding="utf-8") as file:
            lines = file.read().split("\n")
    except FileNotFoundError:
        return recording
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", fix="check the file, or delete it and record again") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        value = _parse_line(line)
        if value is None:
            # The last line of a process that was killed may be torn. It is asked for again.
            if number == len(lines):
                _drop_torn_line(path, line)
                continue
            raise UsageError(
                f"{path}:{number} is not a recording", fix="restore the file, or delete it and record again"
            )
        if recording.head is None:
            recording.head = _read_head(value, path)
        elif (recorded := decode_answer(value)) is not None:
            recording.answers[str(value.get("key"))] = recorded
        elif isinstance(look := value.get("look"), int):
            recording.looks = max(recording.looks, look)
    return recording


def _drop_torn_line(path: Path, line: str) -> None:
    with path.open("r+b") as file:
        file.seek(-len(line.encode()), os.SEEK_END)
        file.truncate()


def _parse_line(line: str) -> Json | None:
    try:
        value = json.loads(line) if len(line) <= MAX_LINE_LENGTH else None
    except (ValueError, RecursionError):
        return None
    return value if is_object(value) else None


def _read_head(value: Json, path: Path) -> RecordingHead:
    tools = value.get("tools")
    if value.get(FORMAT_KEY) != FORMAT or not is_array(tools) or not all(map(is_object, tools)):
        raise UsageError(f"{path} is not a recording of this version", fix="delete it and record again")
    model = ModelName(str(value.get("dialect")), str(value.get("model")))
    return RecordingHead(model, str(value.get("system") or ""), tuple(tools))


def encode_answer(recorded: RecordedAnswer) -> Json:
    answer = recorded.answer
    usage = {name: count for name, count in answer.usage._asdict().items() if count is not None}
    return {
        "answer": {
            "text": answer.text,
            "calls": [[call.name, call.arguments] for call in answer.calls],
            "stop": answer.stop,
        },
        "results": [[reply.text, reply.is_error] for reply in recorded.replies],
        "usage": usage,
        **({"tools": list(recorded.tools)} if recorded.tools is not None else {}),
    }


def decode_answer(value: Json) -> RecordedAnswer | None:
    """None for a line that is no answer."""
    told, usage = object_or_empty(value.get("answer")), object_or_empty(value.get("usage"))
    calls, results = told.get("calls"), value.get("results")
    if not isinstance(told.get("text"), str) or not is_array(calls) or not is_array(results):
        return None
    read = tuple(ModelCall(str(name), arguments if is_object(arguments) else None) for name, arguments in _pairs(calls))
    replies = tuple(
        ToolReply(call, str(text), is_error is True)
        for call, (text, is_error) in zip(read, _pairs(results), strict=False)
    )
    counts = TokenUsage(*(n if isinstance(n := usage.get(name), int) else None for name in TokenUsage._fields))
    answer = ModelAnswer(told["text"], read, STOPS.get(str(told.get("stop")), "end"), counts)
    tools = value.get("tools")
    listed = tuple(tools) if is_array(tools) and all(map(is_object, tools)) else None
    return RecordedAnswer(answer, replies, str(value.get("case")), listed)


def _pairs(values: Iterable[Any]) -> list[tuple[Any, Any]]:
    return [(each[0], each[1]) for each in values if is_array(each) and len(each) == 2]


# -- Why a replay finds nothing: which definitions are others than those that were recorded.


def explain_stale_recording(
    head: RecordingHead | None, now: RecordingHead, known: frozenset[str], missing: Sequence[str]
) -> list[str]:
    """One line for each reason, with the tools that changed."""
    count = f"{len(missing)} {'case was' if len(missing) == 1 else 'cases were'}"
    if head is None:
        return [f"{count} never recorded"]
    changes = list(describe_tool_changes(head.tools, now.tools))
    if head.system != now.system:
        changes.append("other instructions")
    if head.model != now.model:
        changes.append(f"another model ({head.model})")
    if changes:
        return [f"{count} recorded with {', '.join(changes)}"]
    fresh = [name for name in missing if name not in known]
    older = [name for name in missing if name in known]
    reasons = [f"never recorded: {', '.join(fresh[:5])}"] if fresh else []
    return reasons + ([f"recorded with another prompt, result or parameter: {', '.join(older[:5])}"] if older else [])


def describe_tool_changes(old: Iterable[Json], new: Iterable[Json]) -> Iterable[str]:
    """`another find_books (description)`, `without lend`: what is different, in a few words each."""
    before, after = ({str(tool.get("name")): tool for tool in tools} for tools in (old, new))
    for name in before.keys() | after.keys():
        if name not in after:
            yield f"{name}, which is gone"
        elif name not in before:
            yield f"no {name}"
        elif before[name] != after[name]:
            members = [
                member
                for member in ("description", "inputSchema")
                if before[name].get(member) != after[name].get(member)
            ]
            yield f"another {name} ({', '.join(members)})"
    if before == after and list(before) != list(after):
        yield "another order of tools"
