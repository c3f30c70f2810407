"""`python -m tests.reference` writes docs/reference.md from the package itself: its names, docstrings and parsers."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_overloads

from defserve.cli import COMMANDS
from defserve.cli.parser import DESCRIBE_ARGUMENT, ParserDescriptionRequested
from defserve.server.command_line import add_serving_options

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference.md"
WIDE: Final = 100
# Two underscores would make what is between them bold.
ESCAPED: Final = r"\_\_"
LONGEST_DEFAULT: Final = 200

HEAD: Final = """# Reference

Every public name and every command. `python -m tests.reference` writes this page from the package itself: to change
what it says, change the docstring. What the names are good for is on the other pages. `…` is a default that the code
works out.
"""

# Module -> (what it is for, heading -> names; "*" is all of its `__all__`). Every public name is in exactly one group.
MODULES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "defserve": (
        "What the author of a server writes with.",
        {
            "A server": "Server Limits Icon __version__",
            "Other servers inside yours": "Command Remote",
            "Declaring without a server": "tool resource app prompt completion",
            "In a call": "Context Depends SampleOptions Message User Assistant",
            "Results": "ToolResult Text Image Audio File Link Embedded",
            "Errors": "ToolError UsageError Declined Dismissed Refused",
            "Security": "safe moderate dangerous Security validator Shell ShellCommand Code PublicUrl Url Within",
            "Tokens": "Auth ApiKeys JWT",
            "State": "State",
            "Clients": "Client",
        },
    ),
    "defserve.server": ("What a server is given besides tools: audit, metrics, access.", {"": "*"}),
    "defserve.state": ("State with undo.", {"": "*"}),
    "defserve.guard": ("Parameter types that are judged, and what may be fetched.", {"": "*"}),
    "defserve.search": ("Finding tools.", {"": "*"}),
    "defserve.code_mode": ("One tool in which a model writes code.", {"": "*"}),
    "defserve.errors": (
        "What a call can raise.",
        {"": "PeerError PeerGone PeerTimeout NoBackChannel Rejected LimitExceeded TooManyCalls Draining TimedOut"},
    ),
    "defserve.openapi": ("Credentials for an API that is served as tools, and its pages.", {"": "*"}),
    "defserve.auth": ("Who may call.", {"": "*"}),
    "defserve.live": ("All that the authors of feature sets and channels write with.", {"": "*"}),
    "defserve.topics": ("What participants of a topic write with.", {"": "*"}),
    "defserve.testing": ("Tests of a server. The fixtures are in [testing](testing.md).", {"": "*"}),
    "defserve.client": ("The other side: a client that speaks to any server.", {"": "*"}),
    "defserve.sandbox": ("Runs the code of strangers in a process apart.", {"": "*"}),
    "defserve.extending": ("What the author of an extension writes with.", {"": "*"}),
    "defserve.kernel": ("Many servers run and served as one.", {"": "*"}),
    "defserve.gateway": ("A gateway of topics with identities of your own.", {"": "*"}),
}

# What the verbs above give back, which nobody makes by name: where it is, and what gives it.
GIVEN: Final = {
    "FeatureSet": ("defserve.protocols.mcpl.feature_sets", "Server.feature_set(…)"),
    "ChannelType": ("defserve.protocols.mcpl.channels.directory", "Server.channels(…)"),
    "Log": ("defserve.context", "Context.log"),
    "GuardedClient": ("defserve.guard.http_client", "Context.http"),
}

# What cannot have a docstring.
SAID: Final = {
    "__version__": "The version that is installed, as text.",
    "State": "`State[Model]` as the type of a parameter: the state of that model, for this call.",
    "Content": "A part of a message: text, an image, audio or a resource.",
    "Handler": "`(call, params)` to the result of a method. A coroutine function runs as a task, a plain one at once.",
    "Listener": "`(session, params)` for an incoming notification; a coroutine it returns runs as a task.",
    "Next": "`await next(call, params)`: what a wrapper wraps.",
    "Provider": "`(call)` to the value of a parameter that the peer does not send.",
    "Wrapper": "`async (call, params, next)`: sees the params in and the result out of the method it wraps.",
    "To": "Whom a verb speaks to: a session, the name of a principal, `everyone`, or None for the only one there is.",
}

# Where `**options: Unpack[…]` are spelled out.
FIELDS: Final = (
    "defserve.server.options",
    "defserve.openapi.api",
    "defserve.server.decorators",
    "defserve.protocols.mcpl.feature_sets",
    "defserve.guard.http_client",
    "defserve.client.server_requests",
)


def page() -> str:
    """The text of docs/reference.md."""
    parts = [HEAD, *(part for name in MODULES for part in module(name)), *given(), *command_line()]
    return "\n".join(parts).rstrip() + "\n"


def names(module: str) -> dict[str, list[str]]:
    """Heading -> public names of a module."""
    return {
        heading: list(import_module(module).__all__) if listed == "*" else listed.split()
        for heading, listed in MODULES[module][1].items()
    }


def module(name: str) -> Iterator[str]:
    yield f"## {name}\n\n{MODULES[name][0]}\n"
    found = import_module(name)
    for heading, listed in names(name).items():
        if heading:
            yield f"### {heading}\n"
        homes = {each: home_of(each, name) for each in listed}
        for home in dict.fromkeys(filter(None, homes.values())):
            known = ", ".join(f"`{each}`" for each in listed if homes[each] == home)
            yield f"As in [{home}](#{home.replace('.', '')}): {known}.\n"
        for each in listed:
            if not homes[each]:
                yield "\n".join(entry(each, getattr(found, each)))


def home_of(name: str, module: str) -> str:
    """The module that has shown this very object already; nothing for one that is new."""
    value = getattr(import_module(module), name)
    earlier = list(MODULES)[: list(MODULES).index(module)]
    shown = (each for each in earlier if any(name in listed for listed in names(each).values()))
    return next((each for each in shown if getattr(import_module(each), name) is value), "")


def given() -> Iterator[str]:
    yield "## What you are given\n\nObjects that the verbs above return.\n"
    for name, (home, by) in GIVEN.items():
        heading, *rest = entry(name, getattr(import_module(home), name), made_by_hand=False)
        yield "\n".join([heading, f"From `{by}`.\n", *rest])


# -- one name ------------------------------------------------------------------------------------------------


def entry(name: str, value: Any, *, made_by_hand: bool = True) -> Iterator[str]:
    """Heading, signature, first paragraph, and the public methods of a class."""
    yield f"#### {name.replace('__', ESCAPED)}\n"
    if name not in SAID and made_by_hand and (shown := signatures(name, value)):
        yield "\n".join(["```py", *(each.text for each in shown), "```"]) + "\n"
    if text := SAID.get(name) or paragraph(value):
        yield f"{text}\n"
    if inspect.isclass(value) and (methods := list(members(value))):
        yield "\n".join(methods) + "\n"


def paragraph(value: Any) -> str:
    """The first paragraph of an object's own docstring, on one line; nothing if it has none of its own."""
    of: Any = value if inspect.isclass(value) or inspect.isroutine(value) else value.__class__
    text: str = of.__doc__ or ""
    if not of.__module__.startswith("defserve") or text.startswith(f"{of.__name__}("):
        return ""  # what a builtin or a dataclass says of itself
    return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())


def members(cls: type) -> Iterator[str]:
    """A line for each public method and property, those of our own bases included."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("defserve"):
            found.update((name, value) for name, value in vars(base).items() if not name.startswith("_"))
    for name, value in found.items():
        own = inspect.isfunction(value)
        if isinstance(value, property) and value.fget:
            yield line([f"{name}: {typed(inspect.signature(value.fget).return_annotation)}"], value.fget)
        elif own or isinstance(value, (classmethod, staticmethod)):
            yield line([each.on_one_line for each in signatures(name, getattr(cls, name), own=own)], getattr(cls, name))


def line(shown: list[str], function: Any) -> str:
    text = paragraph(function)
    return "- " + " or ".join(f"`{each}`" for each in shown) + (f": {text}" if text else "")


# -- signatures ----------------------------------------------------------------------------------------------


class Spelled:
    """A signature as it is called: on one line, or one parameter a line where that is too long."""

    def __init__(self, name: str, signature: inspect.Signature, *, own: bool) -> None:
        parameters = list(signature.parameters.values())[1 if own else 0 :]
        self.name, self.parameters = name, list(_separated(parameters))
        self.brief = [re.sub(r"^(\w+): .* = …$", r"\1=…", each) for each in self.parameters]
        returns = signature.return_annotation
        self.returns = "" if returns in (inspect.Signature.empty, None, "None") else f" -> {typed(returns)}"

    @property
    def on_one_line(self) -> str:
        """Without the types of options that have no default to show."""
        return f"{self.name}({', '.join(self.brief)}){self.returns}"

    @property
    def text(self) -> str:
        short = f"{self.name}({', '.join(self.parameters)}){self.returns}"
        if len(short) <= WIDE:
            return short
        return "\n".join([f"{self.name}(", *(f"    {each}," for each in self.parameters), f"){self.returns}"])


def signatures(name: str, value: Any, *, own: bool = False) -> list[Spelled]:
    """Every overload, or the one there is; `own` is a method, whose `self` is not shown."""
    if not (inspect.isroutine(value) or inspect.isclass(value)):
        return []
    if inspect.isclass(value) and (issubclass(value, Enum) or getattr(value, "_is_protocol", False)):
        return []
    overloads: Sequence[Callable[..., Any]] = ()
    if inspect.isroutine(value):
        overloads = get_overloads(getattr(value, "__func__", value))
    try:
        return [Spelled(name, inspect.signature(each), own=own) for each in overloads or [value]]
    except ValueError:
        return []  # made as a builtin is


def _separated(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """The parameters, with `/` and `*` where they belong."""
    starred = False
    for number, each in enumerate(parameters):
        if each.kind is each.KEYWORD_ONLY and not starred:
            yield "*"
        starred = starred or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        options = re.fullmatch(r"Unpack\[(?:\w+\.)?(\w+)\]", typed(each.annotation))
        if options:
            yield from ([] if starred else ["*"])
            yield from fields(options[1])
        else:
            yield parameter(each)
        after = parameters[number + 1 : number + 2]
        if each.kind is each.POSITIONAL_ONLY and not (after and after[0].kind is each.kind):
            yield "/"


def parameter(each: inspect.Parameter) -> str:
    stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    text = f"{stars}{each.name}: {typed(each.annotation)}" if each.annotation is not each.empty else stars + each.name
    return text if each.default is each.empty else f"{text} = {default(each.default)}"


def fields(name: str) -> list[str]:
    """The keywords of a TypedDict, in the order they are declared."""
    found = next(filter(None, (getattr(import_module(home), name, None) for home in FIELDS)))
    return [f"{key}: {typed(annotation)} = …" for key, annotation in inspect.get_annotations(found).items()]


def typed(annotation: Any) -> str:
    text = getattr(annotation, "__forward_arg__", annotation)
    return text if isinstance(text, str) else inspect.formatannotation(annotation)


def default(value: Any) -> str:
    """A default as an author would write it; `…` where only the code can say.

    What is long is not shown either: an object may hold this machine's environment, which no page may tell.
    """
    shown = repr(value)
    return "…" if shown.startswith(("<", "{'")) or " at 0x" in shown or len(shown) > LONGEST_DEFAULT else shown


# -- commands ------------------------------------------------------------------------------------------------


def command_line() -> Iterator[str]:
    yield "## The command\n"
    for name, (home, about) in COMMANDS.items():
        module, _, function = home.rpartition(".")
        main: Callable[[list[str]], int] = getattr(import_module(module), function)
        parser = parser_of(main)
        yield "\n".join(command(f"defserve {name}", about, parser))
        for action in actions(parser):
            below = parser_of(main, action)
            yield "\n".join(command(f"defserve {name} {action}", (below.description or "").partition("\n")[0], below))
    own = argparse.ArgumentParser(prog="python server.py")
    add_serving_options(own)
    yield "\n".join(command("python server.py", "what `server.main()` reads; console scripts take the same", own))


def parser_of(main: Callable[[list[str]], int], *words: str) -> argparse.ArgumentParser:
    try:
        main([*words, DESCRIBE_ARGUMENT])
    except ParserDescriptionRequested as found:
        return found.parser
    raise AssertionError(f"{main} reads its command line without a CommandParser")


def actions(parser: argparse.ArgumentParser) -> list[str]:
    """What may follow a command such as `keys`."""
    found = [each for each in parser._actions if each.dest == "action" and not each.option_strings]
    return [str(choice) for each in found for choice in each.choices or ()]


def command(name: str, about: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"#### {name}\n\n{about[:1].upper()}{about[1:].rstrip('.:')}.\n"
    rows = [row(parser, each) for each in parser._actions if each.dest != "help" and each.help != argparse.SUPPRESS]
    if rows:
        yield "\n".join(["| | |", "|---|---|", *rows]) + "\n"


def row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    flags = ", ".join(action.option_strings)
    shown = (flags if action.nargs == 0 else f"{flags} {value}") if flags else str(value)
    about = parser._get_formatter()._expand_help(action) if action.help else ""
    cells = [f"`{shown}`", " ".join(about.split())]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
