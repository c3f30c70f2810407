"""What stores check before they take a server: `defserve check --store`.

Each store is a row of checks. A check looks at the definitions of the server, and at the files of its project, if it
has one: `server.json`, `manifest.json` and the README. What people judge, such as screenshots, is not here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from defserve.binding.json_schemas import walk_schema
from defserve.core.json_values import as_list, is_array, is_mapping, is_object
from defserve.errors import UsageError
from defserve.protocols.mcp.app_policy import APP_MIME_TYPE
from defserve.tooling.lint.definitions import ItemDefinition, LintFinding, ServerDefinitions, make_finding
from defserve.tooling.packaging.project_documents import MAX_META_BYTES, iter_document_schema_problems

MAX_NAME_LENGTH: Final = 64
MAX_STATUS_LENGTH: Final = 64
MAX_LISTED_NAME_LENGTH: Final = 30
MIN_ICON_PIXELS: Final = 48
MAX_ICON_BYTES: Final = 5 * 1024 * 1024
MAX_SKILLS: Final = 20
MAX_FILE_BYTES: Final = 1024 * 1024
PUBLISHER_META: Final = "io.modelcontextprotocol.registry/publisher-provided"

HINTS: Final = ("readOnlyHint", "destructiveHint", "openWorldHint")
MARK_FIX: Final = (
    "mark it: @safe, @moderate(effects=[…]) or @dangerous below @server.tool;"
    " or say annotations={…} with " + ", ".join(HINTS)
)

Level = Literal["error", "warning"]


class ProjectFile(NamedTuple):
    """A file of the project: its path as it is shown, its text, and the JSON in it."""

    path: str
    text: str
    document: dict[str, Any]

    def find_line(self, *words: str) -> str:
        """`file:line` of the last of these words, each looked for after the one before."""
        position = 0
        for word in words:
            found = self.text.find(word, position)
            if found < 0:
                break
            position = found
        return f"{self.path}:{self.text.count(chr(10), 0, position) + 1}"


class Submission(NamedTuple):
    """What a store is given: the server, and the files of its project that there are."""

    server: ServerDefinitions
    registry: ProjectFile | None = None
    manifest: ProjectFile | None = None
    readme: ProjectFile | None = None

    @property
    def views(self) -> list[ItemDefinition]:
        return [item for item in self.server.items if item.wire.get("mimeType") == APP_MIME_TYPE]


class StoreFinding(NamedTuple):
    rule: str
    level: Level
    finding: LintFinding


Findings = Iterator[LintFinding]


def find_store_problems(submission: Submission, store: str) -> Iterator[StoreFinding]:
    """Why a store of the table would refuse a server, or ask about it."""
    for rule in STORE_RULE_SETS[store]:
        level, _, look = STORE_CHECKS[rule]
        for finding in look(submission):
            yield StoreFinding(rule, level, finding)


def build_submission(server: ServerDefinitions) -> Submission:
    """The server, with the files of the project that its functions are in."""
    place = next((item.where.rpartition(":")[0] for item in server.items if item.where), "")
    folders = list(Path(place).resolve().parents)[:4] if place else []
    folder = next((each for each in folders if (each / "pyproject.toml").is_file()), None)
    if folder is None:
        return Submission(server)
    files = {name: _read_file(folder / name) for name in ("server.json", "manifest.json", "README.md")}
    return Submission(server, files["server.json"], files["manifest.json"], files["README.md"])


def _read_file(path: Path) -> ProjectFile | None:
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return None
        text = path.read_text(encoding="utf-8", errors="replace")
        document: Any = json.loads(text) if path.suffix == ".json" else {}
    except ValueError as error:
        raise UsageError(f"{path.name} is not JSON: {error}", where=str(path), fix="correct it") from None
    except OSError:
        return None
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return ProjectFile(str(shown), text, document if is_object(document) else {})


# -- Tools: titles, hints, names, and what they say and ask for.


def _find_untitled(given: Submission) -> Findings:
    for tool in given.server.tools:
        if not (tool.wire.get("title") or tool.annotations.get("title")):
            yield make_finding(tool, "has no title: stores show it to people", 'say @server.tool(title="…")')


def _find_contradicting_hints(given: Submission) -> Findings:
    for tool in given.server.tools:
        if tool.annotations.get("readOnlyHint") is True and tool.annotations.get("destructiveHint") is True:
            yield make_finding(tool, "is read-only and destructive at once", "drop one of the two hints")


def _make_hint_check(hints: tuple[str, ...], needs_all: bool) -> Callable[[Submission], Findings]:
    def find_missing_hints(given: Submission) -> Findings:
        for tool in given.server.tools:
            missing = [hint for hint in hints if not isinstance(tool.annotations.get(hint), bool)]
            if missing and (needs_all or len(missing) == len(hints)):
                yield make_finding(tool, f"does not say {' and '.join(missing)}", MARK_FIX)

    return find_missing_hints


def _find_long_names(given: Submission) -> Findings:
    for tool in given.server.tools:
        if len(tool.name) > MAX_NAME_LENGTH:
            problem = f"has a name of {len(tool.name)} characters, and {MAX_NAME_LENGTH} is the most"
            yield make_finding(tool, problem, 'give it another: @server.tool(name="…")')


_SAFE_METHODS: Final = {"GET", "HEAD", "OPTIONS"}
_UNSAFE_METHODS: Final = {"POST", "PUT", "PATCH", "DELETE"}


def _find_mixed_methods(given: Submission) -> Findings:
    for tool in given.server.tools:
        for parameter in tool.parameters:
            choices = {
                str(value).upper()
                for here in walk_schema(dict(parameter.schema))
                for value in as_list(here.get("enum") or [])
            }
            if choices & _SAFE_METHODS and choices & _UNSAFE_METHODS:
                problem = f"{parameter.name!r} chooses between reading and writing HTTP methods"
                yield make_finding(tool, problem, "make two tools: one that reads, one that writes")


_ORDERS: Final = re.compile(
    r"\b(?:you (?:must|should|have to|need to)|always (?:use|call|prefer)|never (?:use|call)|"
    r"(?:use|call|prefer) this tool (?:instead|before|first)|do not (?:use|call) (?:other|any))\b",
    re.IGNORECASE,
)


def _find_orders(given: Submission) -> Findings:
    for tool in given.server.tools:
        if phrase := _ORDERS.search(" ".join(tool.description.split())[:10_000]):
            problem = f"its description tells the model how to behave: “{phrase[0]}”"
            yield make_finding(tool, problem, "say what the tool does")


_UNWANTED: Final = {
    "makes images, sound or films with a model": re.compile(
        r"\b(?:generate|create|make)[ _](?:an? )?(?:ai[ _])?(?:image|picture|video|music|speech|song)s?\b"
        r"|\btext[ _]to[ _](?:image|video|speech|music)\b",
        re.IGNORECASE,
    ),
    "moves money": re.compile(
        r"\b(?:transfer|send|wire|withdraw)[ _](?:money|funds|cash|payments?|crypto\w*|bitcoins?)\b", re.IGNORECASE
    ),
}


def _find_unwanted(given: Submission) -> Findings:
    for tool in given.server.tools:
        for what, pattern in _UNWANTED.items():
            if pattern.search(f"{tool.name} {tool.description[:10_000]}"):
                yield make_finding(tool, f"looks as if it {what}, which this store does not take", "leave the tool out")


_IDS: Final = re.compile(r"(?:trace|session|request|correlation|span|conversation)_?id", re.IGNORECASE)
_TRANSCRIPTS: Final = re.compile(
    r"(?:chat|conversation|message)_?(?:history|log|transcript)s?|transcripts?", re.IGNORECASE
)
_PLACES: Final = re.compile(r"lat|lng|lon|latitude|longitude|gps|coordinates?|exact_location", re.IGNORECASE)


def _make_property_check(
    member: str, names: re.Pattern[str], problem: str, fix: str
) -> Callable[[Submission], Findings]:
    def find_properties(given: Submission) -> Findings:
        for tool in given.server.tools:
            schema: Any = tool.wire.get(member)
            inside = walk_schema(dict(schema)) if is_mapping(schema) else ()
            words = {
                str(name): None for here in inside for name in here.get("properties") or () if names.fullmatch(name)
            }
            for name in words:
                yield make_finding(tool, problem.format(name=repr(name)), fix)

    return find_properties


# -- OpenAI's keys in `_meta`, and views.


def _get_meta(item: ItemDefinition) -> Mapping[str, Any]:
    meta: Any = item.wire.get("_meta")
    return meta if is_mapping(meta) else {}


def _find_bad_keys(given: Submission) -> Findings:
    for tool in given.server.tools:
        meta = _get_meta(tool)
        for key in ("openai/toolInvocation/invoking", "openai/toolInvocation/invoked"):
            if key in meta and not (isinstance(meta[key], str) and len(meta[key]) <= MAX_STATUS_LENGTH):
                problem = f"_meta[{key!r}] is not a text of at most {MAX_STATUS_LENGTH} characters"
                yield make_finding(tool, problem, "shorten it")
        if "openai/visibility" in meta and meta["openai/visibility"] not in ("public", "private"):
            yield make_finding(tool, "_meta['openai/visibility'] is neither public nor private", "use one of the two")
        if "openai/widgetAccessible" in meta and not isinstance(meta["openai/widgetAccessible"], bool):
            yield make_finding(tool, "_meta['openai/widgetAccessible'] is not a boolean", "use True or False")
        known = {parameter.name for parameter in tool.parameters}
        for name in as_list(meta.get("openai/fileParams") or []):
            if name not in known:
                problem = f"_meta['openai/fileParams'] names {name!r}, which is no argument"
                yield make_finding(tool, problem, "name the argument that takes the file")
        if "securitySchemes" in tool.wire and "securitySchemes" not in meta:
            yield make_finding(tool, "has securitySchemes that are not in its _meta too", "repeat them in meta={…}")


def _get_view_options(view: ItemDefinition) -> Mapping[str, Any]:
    ui: Any = _get_meta(view).get("ui")
    return ui if is_mapping(ui) else {}


def _find_homeless_views(given: Submission) -> Findings:
    for view in given.views:
        if not (_get_view_options(view).get("domain") or _get_meta(view).get("openai/widgetDomain")):
            problem = "has no domain of its own, which a submission needs"
            yield make_finding(view, problem, '@server.app(…, meta={"openai/widgetDomain": "https://your.domain"})')


def _find_loose_policies(given: Submission) -> Findings:
    for view in given.views:
        policy: Any = _get_view_options(view).get("csp")
        for name, origins in policy.items() if is_mapping(policy) else ():
            for origin in as_list(origins):
                if "*" in str(origin) or not str(origin).startswith(("https://", "wss://")):
                    problem = f"its csp allows {origin!r} in {name}: it has to be an exact https origin"
                    yield make_finding(view, problem, "name the hosts one by one")


def _find_frames(given: Submission) -> Findings:
    for view in given.views:
        policy: Any = _get_view_options(view).get("csp")
        if is_mapping(policy) and policy.get("frameDomains"):
            yield make_finding(view, "has frames, which reviewers ask about", "say in the submission why it needs them")


# -- What the server says about itself.


def _find_bad_listing(given: Submission) -> Findings:
    info = given.server.info
    where = next((item.where for item in given.server.items if item.where), "")
    name = str(info.get("title") or info.get("name") or "")
    if len(name) > MAX_LISTED_NAME_LENGTH:
        problem = f"its name {name!r} has more than {MAX_LISTED_NAME_LENGTH} characters"
        yield LintFinding("the server", where, problem, 'Server(…, title="…") with a shorter one')
    for icon in filter(is_mapping, as_list(info.get("icons") or [])):
        if len(str(icon.get("src") or "")) * 3 // 4 > MAX_ICON_BYTES:
            yield LintFinding("the server", where, "has an icon of more than 5 MiB", "use a smaller one")
        for size in as_list(icon.get("sizes") or []):
            width, _, height = str(size).partition("x")
            if width.isdecimal() and (width != height or int(width) < MIN_ICON_PIXELS):
                problem = f"has an icon of {size}: it has to be square, with {MIN_ICON_PIXELS} pixels or more"
                yield LintFinding("the server", where, problem, "use another")


def _find_insecure_links(given: Submission) -> Findings:
    info = given.server.info
    where = next((item.where for item in given.server.items if item.where), "")
    icons = [icon.get("src") for icon in filter(is_mapping, as_list(info.get("icons") or []))]
    for url in filter(None, [info.get("websiteUrl"), *icons]):
        if not str(url).startswith(("https://", "data:")):
            yield LintFinding("the server", where, f"links to {str(url)[:80]}, which is not https", "use https")


def _find_too_many_skills(given: Submission) -> Findings:
    if len(given.server.skills) > MAX_SKILLS:
        problem = f"has {len(given.server.skills)} skills, and {MAX_SKILLS} is the most"
        yield LintFinding("the server", given.server.skills[MAX_SKILLS].where, problem, "leave some out")


_PRIVACY: Final = re.compile(r"^#+\s.*\bprivacy\b", re.IGNORECASE | re.MULTILINE)


def _find_missing_privacy(given: Submission) -> Findings:
    """For bundles only: what is served elsewhere has its policy in the form of the store."""
    if given.manifest is None:
        return
    policies = given.manifest.document.get("privacy_policies")
    if not is_array(policies) or not policies or not all(str(url).startswith("https://") for url in policies):
        problem = "has no privacy_policies with https addresses"
        where = given.manifest.find_line('"privacy_policies"')
        yield LintFinding("manifest.json", where, problem, 'add "privacy_policies": ["https://…"]')
    if given.readme is not None and not _PRIVACY.search(given.readme.text):
        problem = "has no section about privacy"
        yield LintFinding("the README", f"{given.readme.path}:1", problem, "add one: ## Privacy, what is sent where")


# -- The registry: `server.json`.


_REGISTRY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*[A-Za-z0-9]/[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]")
_RANGE: Final = re.compile(r"^[\^~<>=]|\s|\|\||\*|(?:^|\.)[xX](?:\.|$)")


def _find_registry_problems(given: Submission) -> Findings:
    file = given.registry
    if file is None:
        where = next((item.where for item in given.server.items if item.where), "")
        problem = "there is none beside pyproject.toml"
        yield LintFinding(
            "server.json", where, problem, "defserve package makes one; defserve new has one in its template"
        )
        return
    for problem, fix in _iter_registry_problems(file.document):
        words, text = problem
        yield LintFinding("server.json", file.find_line(*words), text, fix)
    for found in iter_document_schema_problems(file.document, "server"):
        place = found.problem.removeprefix("server.json: ").partition(":")[0].rpartition(".")[2]
        yield LintFinding("server.json", file.find_line(f'"{place}"'), found.problem.partition(": ")[2], found.fix)


_Located = tuple[tuple[tuple[str, ...], str], str]


def _iter_registry_problems(document: dict[str, Any]) -> Iterator[_Located]:
    name, version = str(document.get("name") or ""), str(document.get("version") or "")
    if not _REGISTRY_NAME.fullmatch(name[:300]):
        yield (('"name"',), f"the name {name!r} is not namespace/name"), "write io.github.USER/NAME"
    yield from _check_version(version, '"version"')
    icons = [icon.get("src") for icon in filter(is_object, as_list(document.get("icons") or []))]
    for url in filter(None, [document.get("websiteUrl"), *icons]):
        if not str(url).startswith("https://"):
            yield ((f'"{url}"',), f"{str(url)[:80]} is not https"), "use https"
    for package in filter(is_object, as_list(document.get("packages") or [])):
        yield from _check_package(package)
    meta: Any = document.get("_meta")
    if is_object(meta):
        for key in meta.keys() - {PUBLISHER_META}:
            yield ((f'"{key}"',), f"_meta has {key!r}, and only {PUBLISHER_META} is allowed"), "move it in there"
        if len(json.dumps(meta)) > MAX_META_BYTES:
            yield (('"_meta"',), f"_meta is larger than {MAX_META_BYTES} bytes"), "shorten it"


def _check_version(version: str, word: str) -> Iterator[_Located]:
    if version == "latest" or not version or _RANGE.search(version[:255]):
        yield ((word,), f"the version {version!r} is not one version"), "write one, such as 1.2.0"


def _check_package(package: dict[str, Any]) -> Iterator[_Located]:
    at = '"packages"'
    if "version" in package:
        yield from (
            (((at, *words), text), fix) for (words, text), fix in _check_version(str(package["version"]), '"version"')
        )
    transport: Any = package.get("transport")
    if is_object(transport) and transport.get("type") == "stdio" and transport.get("url"):
        yield ((at, '"url"'), "a transport over stdio has a url"), "remove the url, or use streamable-http"
    if package.get("registryType") == "mcpb" and not package.get("fileSha256"):
        yield ((at, '"mcpb"'), "a package of type mcpb has no fileSha256"), "write the SHA-256 of the bundle there"
    for kind in ("runtimeArguments", "packageArguments"):
        for argument in filter(is_object, as_list(package.get(kind) or [])):
            name = argument.get("name")
            if isinstance(name, str) and re.search(r"[<>$\s]", name):
                yield ((at, f'"{name}"'), f"the argument {name!r} has <, >, $ or a blank in its name"), "leave it out"


# -- The table.


STORE_CHECKS: Final[Mapping[str, tuple[Level, str, Callable[[Submission], Findings]]]] = {
    "store-title": ("error", "a tool without a title", _find_untitled),
    "store-hint": (
        "error",
        "a tool that says neither readOnlyHint nor destructiveHint",
        _make_hint_check(HINTS[:2], needs_all=False),
    ),
    "store-hints": (
        "error",
        f"a tool that does not say each of {', '.join(HINTS)}",
        _make_hint_check(HINTS, needs_all=True),
    ),
    "store-contradiction": ("error", "a tool that is read-only and destructive", _find_contradicting_hints),
    "store-name": ("error", f"a name of more than {MAX_NAME_LENGTH} characters", _find_long_names),
    "store-methods": ("error", "an argument that chooses safe and unsafe HTTP methods", _find_mixed_methods),
    "store-orders": ("error", "a description that tells the model how to behave", _find_orders),
    "store-unwanted": ("warning", "a tool that makes media with a model, or moves money", _find_unwanted),
    "store-privacy": ("error", "a bundle without a privacy policy", _find_missing_privacy),
    "store-ids": (
        "error",
        "a result with trace or session ids",
        _make_property_check("outputSchema", _IDS, "answers with {name}", "leave ids of traces and sessions out"),
    ),
    "store-transcripts": (
        "error",
        "a tool that asks for transcripts",
        _make_property_check("inputSchema", _TRANSCRIPTS, "asks for {name}", "ask only for what the tool needs"),
    ),
    "store-location": (
        "warning",
        "a tool that asks for a precise location",
        _make_property_check("inputSchema", _PLACES, "asks for {name}", "ask for a city or region if that is enough"),
    ),
    "store-keys": ("error", "a key of OpenAI in `_meta` with a wrong value", _find_bad_keys),
    "store-view-domain": ("warning", "a view without a domain of its own", _find_homeless_views),
    "store-view-csp": ("error", "a view whose csp has wildcards or no https", _find_loose_policies),
    "store-view-frames": ("warning", "a view with frames", _find_frames),
    "store-listing": ("error", "a long name, or an icon of a wrong size", _find_bad_listing),
    "store-links": ("error", "a website or icon without https", _find_insecure_links),
    "store-skills": ("error", f"more than {MAX_SKILLS} skills", _find_too_many_skills),
    "store-registry": ("error", "a server.json that the registry refuses", _find_registry_problems),
}
"""Rule → its level, what it finds, and the function that looks."""

STORE_RULE_SETS: Final[Mapping[str, tuple[str, ...]]] = {
    "anthropic": (
        *("store-title", "store-hint", "store-contradiction", "store-name", "store-methods", "store-orders"),
        *("store-unwanted", "store-privacy"),
    ),
    "openai": (
        *("store-hints", "store-contradiction", "store-ids", "store-transcripts", "store-location", "store-keys"),
        *("store-view-domain", "store-view-csp", "store-view-frames", "store-listing", "store-links"),
    ),
    "registry": ("store-registry", "store-links"),
    "cowork": ("store-title", "store-hint", "store-contradiction", "store-skills"),
}
"""Store → the rules that it has."""
