"""The command line of a server: the address it serves on, and the options for that address."""

from __future__ import annotations

from argparse import Action, ArgumentParser, BooleanOptionalAction, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from defserve.errors import did_you_mean, find_nearest_names
from defserve.serve.address import ADDRESS_FORMS

REPEATED = {"action": "append"}
SWITCH = {"action": "store_const", "const": True}

PYTHON_LOG_LEVELS = ("debug", "info", "warning", "error", "critical")

# Options of other tools that are part of the address here.
ADDRESS = frozenset(("--host", "--port", "--transport", "-t"))

# The flag, the option of `Server.run` that it sets, and its settings for argparse.
OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "--allow-host",
        "allowed_hosts",
        {"metavar": "HOST", **REPEATED, "help": "a host name that clients may use; repeatable"},
    ),
    (
        "--allow-origin",
        "allowed_origins",
        {"metavar": "ORIGIN", **REPEATED, "help": "an origin whose web pages may connect; repeatable"},
    ),
    ("--trusted-proxy", "trusted_proxy", {**SWITCH, "help": "a proxy in front checks host names and origins"}),
    (
        "--local-token",
        "local_token",
        {
            "action": BooleanOptionalAction,
            "help": "on a loopback address: your programs connect as you, by a key in a private file",
        },
    ),
    (
        "--trust-same-user",
        "trust_same_user",
        {**SWITCH, "help": "on a unix socket: every process of your user connects as you, proxies included"},
    ),
    ("--stateless", "stateless", {**SWITCH, "help": "open no sessions: all clients are of the stateless era"}),
    ("--certfile", "certfile", {"metavar": "FILE", "help": "certificate for https:// and wss://"}),
    ("--keyfile", "keyfile", {"metavar": "FILE", "help": "the key, if it is not in the certificate file"}),
    ("--token-file", "token_file", {"metavar": "FILE", "help": "the server's token for a gateway that it joins"}),
    (
        "--legacy-sse",
        "legacy_sse",
        {**SWITCH, "help": "also serve old clients (HTTP+SSE of 2024) at /sse, beside /mcp"},
    ),
    ("--rest", "rest", {**SWITCH, "help": "also serve REST beside /mcp: POST /tools/NAME and GET /openapi.json"}),
    ("--metrics", "metrics", {**SWITCH, "help": "also serve GET /metrics for Prometheus, beside /mcp"}),
    (
        "--telemetry",
        "telemetry",
        {**SWITCH, "help": "send traces and metrics to an OpenTelemetry collector, as the OTEL_… variables say"},
    ),
    (
        "--page",
        "page",
        {"action": BooleanOptionalAction, "help": "a page for browsers (default: on loopback names, without auth)"},
    ),
    (
        "--card",
        "card",
        {"action": BooleanOptionalAction, "help": "the server card and the AI catalog, for everybody (default: on)"},
    ),
    (
        "--openai-challenge",
        "openai_challenge",
        {"metavar": "TOKEN", "help": "prove to OpenAI that the domain is yours (also DEFSERVE_OPENAI_CHALLENGE)"},
    ),
    (
        "--log-level",
        "log_level",
        {"choices": PYTHON_LOG_LEVELS, "help": "log this level and above to stderr; info logs every request"},
    ),
    (
        "--log-json",
        "log_json",
        {**SWITCH, "help": "log to stderr as JSON lines; the level is info unless --log-level is given"},
    ),
)


def add_serving_options(parser: ArgumentParser) -> None:
    """Add `--on ADDRESS` and the options for serving on it."""
    text = "stdio: (default), http://host:port/path, https://…, ws://…, wss://…, unix:/path"
    parser.add_argument("--on", metavar="ADDRESS", default="stdio:", help=text)
    for flag, option, settings in OPTIONS:
        parser.add_argument(flag, dest=option, **settings)


def add_workers_option(parser: ArgumentParser) -> None:
    """Add `--workers N`, for commands that can start themselves several times."""
    text = "serve with N processes on one socket, or `auto`: one for each core; SIGHUP replaces them"
    parser.add_argument("--workers", metavar="N", help=text)


def read_serving_options(options: Namespace) -> dict[str, Any]:
    """The options that were given, as keyword arguments of `Server.run`."""
    found = {option: getattr(options, option, None) for option in (*(option for _, option, _ in OPTIONS), "workers")}
    return {"on": options.on} | {option: value for option, value in found.items() if value is not None}


MISSING = "the following arguments are required: "
"""What argparse says of them."""


class FixReportingParser(ArgumentParser):
    """Reports a mistake with its fix, in the form of all errors of `defserve`, and exits with 1."""

    example = ADDRESS_FORMS["http"]
    _given: list[str] | None = None

    elsewhere: Mapping[str, str] = {}
    """Options and actions of other commands that people try here, and what to write instead."""

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] - overloaded there
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> Any:
        self._given = None if args is None else list(args)
        return super().parse_known_args(self._given, namespace)

    def parse_args(  # pyright: ignore[reportIncompatibleMethodOverride] - overloaded there
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.refuse(*self.describe_unknown_words(unknown))
        return options

    def describe_unknown_words(self, words: Sequence[str]) -> tuple[str, str]:
        """What is wrong with words that mean nothing to this parser, and the fix. The first one is enough."""
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        if option is None:
            return f"{self.prog} does not know what to do with {words[0]!r}", f"see {self.prog} --help"
        on = self.get_default("on")
        if on and option in ADDRESS:
            fix = f"write --on {on if '//' in on else self.example}"
        else:
            fix = self.elsewhere.get(option) or self._find_nearest_option(option) or f"see {self.prog} --help"
        return f"{self.prog} has no option {option}", fix

    def _find_nearest_option(self, option: str) -> str:
        """The fix for a misspelt option; empty if none is near. All begin with dashes, which do not count."""
        known = {name.lstrip("-"): name for name in self._option_string_actions}
        nearest = find_nearest_names(option.lstrip("-"), known)
        return f"did you mean {known[nearest[0]]!r}?" if nearest else ""

    def _check_value(self, action: Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        fix = self.elsewhere.get(str(value)) or did_you_mean(str(value), map(str, action.choices))
        if action.dest == "action":
            self.refuse(f"{self.prog} has no action {value!r}", fix)
        name = "/".join(action.option_strings) or str(action.metavar or action.dest).upper()
        self.refuse(f"{name} cannot be {value!r}", fix)

    def error(self, message: str) -> NoReturn:
        options = (word.partition("=")[0] for word in self._given or () if word.startswith("--") and word != "--")
        if unknown := [name for name in options if name not in self._option_string_actions]:
            # Whatever argparse misses, it may be what this was meant to be.
            self.refuse(*self.describe_unknown_words(unknown))
        _, is_missing, names = message.partition(MISSING)
        if is_missing:
            named = [name if name.startswith("-") else name.upper() for name in names.split(", ")]
            choices = next((each.choices for each in self._actions if each.dest == names and each.choices), None)
            fix = f"give one of {', '.join(map(str, choices))}" if choices else f"see {self.prog} --help"
            self.refuse(f"{self.prog} needs {' and '.join(named)}", fix)
        argument, is_without_value, _ = message.removeprefix("argument ").partition(": expected one argument")
        if is_without_value:
            option = argument.rpartition("/")[2]
            self.refuse(
                f"{option} needs a value", f"write {option} VALUE, or {option}=VALUE if the value begins with a dash"
            )
        for kind in ("int", "float"):  # argparse says what Python calls them
            before, is_no_number, value = message.partition(f": invalid {kind} value: ")
            message = f"{before}: {value} is not a {'whole ' * (kind == 'int')}number" if is_no_number else message
        self.refuse(message, f"see {self.prog} --help")

    def refuse(self, problem: str, fix: str) -> NoReturn:
        """Print an error and its fix, and exit."""
        self.exit(1, f"error: {problem}\n  fix: {fix}\n")


def parse_server_arguments(arguments: Sequence[str], name: str, version: Callable[[], str]) -> dict[str, Any]:
    """The arguments for `Server.run` of `python server.py …`. Prints and exits for --help, --version and mistakes."""
    parser = FixReportingParser(
        description=f"Serve {name}.",
        epilog="Without options it serves on standard input and output, for a client that starts it.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    add_serving_options(parser)
    add_workers_option(parser)
    parser.add_argument("--version", action="store_true", help="print the server's version and exit")
    options = parser.parse_args(list(arguments))
    if options.version:
        parser.exit(0, f"{name} {version()}\n")
    return read_serving_options(options)
