"""The pytest plugin: the fixtures `client`, `schema_snapshot` and `model`, and suites of evals as tests.

It imports only pytest until a test needs more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from defserve.testing.client import SyncClient
    from defserve.testing.evals import EvalModel

ERAS = ("handshake", "stateless")
TRANSPORTS = ("memory", "stdio", "http", "ws")
MARKERS = (
    "serves(target, over=..., own_store=False, **options): the server of the `client` fixture: an object,"
    ' "module:attr", "path/server.py:attr" or an address; over "memory", "stdio", "http", "ws" or several of them; with'
    " own_store it uses Server(store=...), and else an empty store in memory; options go to the client",
    'eras(*eras): run only in these eras: "handshake", "stateless", or a protocol version',
    "eval(runs=5, least=0.8): the test asks the fixture `model`; it is called once a run, and most runs must pass",
)
PASSED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    # Not --snapshot-update: pytest refuses to start when two plugins (syrupy has it) add the same option.
    group = parser.getgroup("defserve")
    group.addoption("--update-schemas", action="store_true", help="write the files that schema_snapshot compares with")
    group.addoption(
        "--serve-over",
        action="append",
        choices=TRANSPORTS,
        help="the transport of the `client` fixture, if no mark sets one (default: memory); repeatable",
    )
    group.addoption("--eval-record", action="store_true", help="ask the model for what evals have not recorded")
    group.addoption("--eval-model", metavar="MODEL", help="the model of evals, such as ollama:qwen3")
    group.addoption("--eval-url", metavar="URL", help="where that model is, for --eval-record")
    group.addoption("--eval-key-env", metavar="NAME", help="the variable that holds the endpoint's key")
    parser.addini("eval_model", "the model of evals, such as ollama:qwen3")


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Only `client` uses this fixture, so tests with their own `client` are not parametrized.
    if "defserve_era" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("eras")
        metafunc.parametrize("defserve_era", mark.args if mark else ERAS, indirect=True)
    if "defserve_over" in metafunc.fixturenames and (transports := _transports(metafunc)):
        metafunc.parametrize("defserve_over", transports, indirect=True)


def _transports(metafunc: pytest.Metafunc) -> tuple[str, ...]:
    """The transports of the test: those of its mark, or else of the command line; empty if neither sets any."""
    mark = metafunc.definition.get_closest_marker("serves")
    chosen: Any = mark.kwargs.get("over") if mark else None
    if chosen is None:
        return tuple(dict.fromkeys(metafunc.config.getoption("--serve-over") or ()))
    several = (chosen,) if isinstance(chosen, str) else tuple(chosen)
    for one in several:
        if one not in TRANSPORTS:
            raise pytest.UsageError(f"serves(over={one!r}): use some of {', '.join(TRANSPORTS)}")
    return several


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A suite of evals is a file of tests, if it or the settings name a model."""
    if not file_path.name.endswith((".eval.yaml", ".eval.yml")):
        return None
    from defserve.testing.evals import EvalFile, can_collect_suite

    if not can_collect_suite(file_path, parent.config):
        return None
    made: Any = EvalFile
    return made.from_parent(parent, path=file_path)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test with the mark `eval` is called once a run."""
    mark = pyfuncitem.get_closest_marker("eval")
    if mark is None or "model" not in pyfuncitem.funcargs:
        return None
    from defserve.testing.evals import repeat_and_judge_test

    repeat_and_judge_test(pyfuncitem, **mark.kwargs)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture
def defserve_era(request: pytest.FixtureRequest) -> str:
    """The era of the test. A test runs in both eras unless it is marked with `eras`."""
    return getattr(request, "param", ERAS[-1])


@pytest.fixture
def defserve_over(request: pytest.FixtureRequest) -> str:
    """The transport of the test: memory, unless a mark or the command line sets another."""
    return getattr(request, "param", TRANSPORTS[0])


@pytest.fixture
def client(request: pytest.FixtureRequest, defserve_era: str, defserve_over: str) -> Generator[SyncClient, None, None]:
    """A connected client of the server under test, without `await`.

    The server comes from `@pytest.mark.serves(...)`, else from the fixture `server`, else from the test's own module:
    its `server`, or the only server that it makes or imports.
    """
    from defserve.testing.client import SyncClient

    server, options = _server_under_test(request, defserve_over)
    client = SyncClient(
        server,
        defserve_era,
        over=defserve_over,
        updates_snapshots=bool(request.config.getoption("--update-schemas")),
        **options,
    )
    try:
        yield client
    finally:
        # A test that failed must not be reported again for answers that it did not reach.
        client.close(check=request.node.stash.get(PASSED, False))


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Generator[EvalModel, None, None]:
    """A model that is asked with the tools of the server under test: `model.ask("…").called("find_books")`.

    Its answers come from a recording beside the test. With `--eval-record` it is asked for those that are missing.
    """
    from defserve.testing.evals import open_eval_model

    server, _ = _server_under_test(request, TRANSPORTS[0])
    with open_eval_model(request.config, server, request.path.parent, request.path.stem, request.node.name) as model:
        yield model


@pytest.fixture
def schema_snapshot(request: pytest.FixtureRequest, client: SyncClient) -> Callable[..., None]:
    """Compares the server's tools with a committed file: `schema_snapshot()` or `schema_snapshot("tools.json")`.

    The path starts in the folder of the test. Without one, the file is in `schemas/` there.
    """
    from defserve.testing.client import assert_schemas

    def check(path: str | Path | None = None) -> None:
        name: str = getattr(request.node, "originalname", None) or request.node.name
        assert_schemas(client, request.path.parent / (path or Path("schemas", f"{name}.{{era}}.json")))

    return check


def _server_under_test(request: pytest.FixtureRequest, over: str) -> tuple[Any, dict[str, Any]]:
    from defserve.client.targets import is_server_address, is_server_object
    from defserve.errors import UsageError
    from defserve.testing.transports import refuse_stores_replaced_before, use_memory_stores
    from defserve.tooling.loading import load_without_serving

    mark = request.node.get_closest_marker("serves")
    target: Any = mark.args[0] if mark and mark.args else _find_default_server(request)
    options = {name: value for name, value in mark.kwargs.items() if name != "over"} if mark else {}
    _check_options(options)
    has_own_store = options.pop("own_store", False)
    if isinstance(target, str) and is_server_address(target):
        return target, options
    if isinstance(target, str) and over == "stdio":
        return target, {**options, "own_store": has_own_store}
    if over == "stdio":
        pytest.fail(
            "over stdio a server runs in its own process, so it cannot be given as an object\n"
            '  fix: name it, @pytest.mark.serves("module:server"), or use another transport: over="memory"',
            pytrace=False,
        )
    try:
        server = load_without_serving(target) if isinstance(target, str) else target
    except UsageError as error:
        pytest.fail(f"the server under test cannot be loaded: {error}", pytrace=False)
    if not is_server_object(server):
        pytest.fail(f"the server under test is {type(server).__name__!r}, not a server", pytrace=False)
    try:
        (refuse_stores_replaced_before if has_own_store else use_memory_stores)(server)
    except UsageError as error:
        pytest.fail(str(error), pytrace=False)
    return server, options


def _check_options(options: dict[str, Any]) -> None:
    """Fails the test for an option of its mark that does not exist."""
    from inspect import signature

    from defserve.client.client import Client
    from defserve.errors import did_you_mean
    from defserve.testing.transports import CREDENTIAL_OPTIONS

    known = [*("over", "own_store", *CREDENTIAL_OPTIONS), *list(signature(Client).parameters)[1:]]
    for name in options:
        if name not in known:
            pytest.fail(f"serves has no option {name!r}\n  fix: {did_you_mean(name, known)}", pytrace=False)


def _find_default_server(request: pytest.FixtureRequest) -> Any:
    """The fixture `server`, or the server of the test's own module."""
    try:
        return request.getfixturevalue("server")
    except pytest.FixtureLookupError:
        found = _servers_of(request.node.module)
    if len(found) == 1:
        return found[0]
    several = f": its module has {len(found)} of them, and none is called `server`" if found else ""
    pytest.fail(
        f"the `client` fixture does not know which server to test{several}\n"
        '  fix: mark the test with @pytest.mark.serves("module:server"), define a fixture named `server`, or make or'
        " import one server in the module of the test",
        pytrace=False,
    )


def _servers_of(module: ModuleType) -> list[Any]:
    """Its `server`, or else every server that it has, under whatever name."""
    from defserve.client.targets import is_server_object

    if is_server_object(named := vars(module).get("server")):
        return [named]
    return list({id(each): each for each in vars(module).values() if is_server_object(each)}.values())
