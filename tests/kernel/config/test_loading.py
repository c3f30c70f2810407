"""mgp.toml: what it says, and how its mistakes are named."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.errors import UsageError
from defserve.kernel.config.entries import KernelConfig, OperatorToolMarks, ServerEntry, expand_path_variables
from defserve.kernel.config.loading import ConfigMistakes, line_at, lines_of, load_kernel_config
from defserve.kernel.config.settings import (
    FILE_SETTINGS,
    KERNEL,
    SERVER_SETTINGS,
    ConfigMistake,
    format_schema,
    read_shipped_schema,
    schema,
)
from defserve.proxying.mounted import RestartPolicy
from tests.rows import for_each_row

SEED = """
[[servers]]
id = "mind.cerebras"
command = "python"
args = ["mcp-servers/cerebras/server.py"]
transport = "stdio"

[servers.mgp]
extensions = ["security", "lifecycle", "streaming"]
permissions_required = ["network.outbound"]
trust_level = "standard"
restart_policy = "on_failure"

[servers.env]
CEREBRAS_API_KEY = "${CEREBRAS_API_KEY}"
"""


def loaded(folder: Path, text: str, name: str = "mgp.toml") -> KernelConfig:
    (folder / name).write_text(text)
    return load_kernel_config(folder / name)


def only(folder: Path, text: str) -> ServerEntry:
    (entry,) = loaded(folder, text).servers
    return entry


def mistakes(folder: Path, text: str) -> list[UsageError]:
    with pytest.raises(ConfigMistakes) as caught:
        loaded(folder, text)
    return list(caught.value.mistakes)


@pytest.mark.req("MGP-15.2f")
def test_the_example_of_the_document_is_read(tmp_path: Path) -> None:
    entry = only(tmp_path, SEED)
    assert entry.id == "mind.cerebras"
    assert entry.launch.command == "python"
    assert entry.launch.args == ("mcp-servers/cerebras/server.py",)
    assert entry.launch.cwd == str(tmp_path)
    assert entry.launch.env == {"CEREBRAS_API_KEY": "${CEREBRAS_API_KEY}"}
    assert entry.mgp is not None
    assert entry.mgp.extensions == ("security", "lifecycle", "streaming")
    assert entry.mgp.permissions_required == ("network.outbound",)
    assert entry.mgp.trust_level == "standard"
    assert entry.restart == RestartPolicy("on_failure")


@pytest.mark.req("MGP-15.2f")
def test_a_server_without_an_mgp_section_is_plain_mcp(tmp_path: Path) -> None:
    assert only(tmp_path, '[[servers]]\nid = "a"\ncommand = "a"\n').mgp is None


def test_what_the_kernel_and_governance_need_is_read(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        """
        [kernel]
        name = "desk"
        level = "L3"
        default_policy = "opt-in"
        admins = ["alice"]
        audit = "audit.jsonl"
        on_change = "hold"
        [kernel.budget]
        max_tokens = 9000
        [kernel.tools]
        pinned = ["wiki.read"]
        [kernel.register]
        enabled = true
        commands = ["uvx"]
        [[servers]]
        id = "wiki"
        url = "https://wiki.example.org/mcp"
        headers = { X-Team = "docs" }
        auth_token = "${WIKI}"
        prefix = "w"
        pinned = ["read"]
        per = "shared"
        timeout = 5
        in_flight = 3
        start = "lazy"
        idle_stop = 60
        tools = { allow = ["read*"], deny = ["read_all"], rename = { read = "look" } }
        health = { interval_secs = 0 }
        [servers.mgp]
        trust_level = "sandboxed"
        on_change = "warn"
        [servers.mgp.tools."delete_*"]
        risk = "dangerous"
        permissions = ["filesystem.write"]
        """,
    )
    (wiki,) = config.servers
    assert config.settings.name == "desk"
    assert config.settings.audit == str(tmp_path / "audit.jsonl")
    assert (config.settings.budget.max_tokens, config.settings.budget.cache_limit) == (9000, 3000)
    assert config.settings.pinned == ("wiki.read",)
    assert config.settings.register.commands == ("uvx",)
    assert (wiki.tools.allow, wiki.tools.deny, wiki.tools.rename) == (("read*",), ("read_all",), {"read": "look"})
    assert wiki.health.interval_secs == 0
    assert wiki.mgp is not None
    assert wiki.mgp.tools == {"delete_*": OperatorToolMarks("dangerous", ("filesystem.write",))}
    assert (wiki.launch.timeout, wiki.launch.in_flight, wiki.launch.per) == (5, 3, "shared")


@pytest.mark.req("MGP-11.5p", "MGP-11.5w", "MGP-11.5b")
@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", RestartPolicy()),
        ('[servers.mgp]\nrestart_policy = "never"', RestartPolicy("never")),
        ('restart_policy = "always"', RestartPolicy("always")),
        ("auto_restart = false", RestartPolicy("never")),
        ("auto_restart = true", RestartPolicy("on_failure")),
        ('restart_policy = { strategy = "always", max_restarts = 2 }', RestartPolicy("always", 2)),
        (
            "[servers.mgp]\nmax_restarts = 1\nrestart_window_secs = 9\nbackoff_base_ms = 500\nbackoff_max_ms = 2500",
            RestartPolicy("on_failure", 1, 9, 0.5, 2.5),
        ),
    ],
)
def test_a_restart_policy_may_stand_in_three_places(tmp_path: Path, text: str, policy: RestartPolicy) -> None:
    assert only(tmp_path, f'[[servers]]\nid = "a"\ncommand = "a"\n{text}\n').restart == policy


def test_an_address_is_tried_for_ever_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    url = '[[servers]]\nid = "a"\nurl = "http://127.0.0.1/mcp"\n'
    assert only(tmp_path, url).restart.max_restarts is None
    assert only(tmp_path, f"{url}[servers.mgp]\nmax_restarts = 2\n").restart.max_restarts == 2


A = '[[servers]]\nid = "a"\ncommand = "a"\n'
WRONG = {
    "colour = 1": ("colour is not a setting", 1),
    f"{A}comand = 1": ("server 'a': comand is not a setting", 4),
    f"{A}url = 'http://x/'": ("has both a command and a url", 1),
    "[[servers]]\nid = 'a'": ("has neither a command nor a url", 1),
    "[[servers]]\ncommand = 'a'": ("server 1 has no id", 1),
    f"{A}\n{A}": ("the id 'a' is taken by", 5),
    "[[servers]]\nid = 'a b'\ncommand = 'a'": ("id cannot be 'a b'", 2),
    f"{A}transport = 'http'": ("has the transport http and a command", 1),
    f"{A}transport = 'pigeon'": ("transport cannot be 'pigeon'", 4),
    f"{A}headers = {{ a = 'b' }}": ("has headers, which belongs to a url", 1),
    "[[servers]]\nid = 'a'\nurl = 'http://x/'\nargs = ['a']": ("has args, which belongs to a command", 1),
    "[[servers]]\nid = 'a'\nurl = 'x'": ("url cannot be 'x'", 3),
    f"{A}args = 'a'": ("args must be a list of texts", 4),
    f"{A}args = [1]": ("args must be a list of texts", 4),
    f"{A}[servers.env]\nA = 1": ("env.A must be a text", 5),
    f"{A}[servers.env]\n'A B' = 'x'": ("cannot be called 'A B'", 5),
    f"{A}timeout = true": ("timeout cannot be True", 4),
    f"{A}timeout = nan": ("timeout cannot be nan", 4),
    f"{A}in_flight = 1.5": ("in_flight cannot be 1.5", 4),
    f"{A}enabled = 'yes'": ("enabled cannot be 'yes'", 4),
    f"{A}mgp = 1": ("mgp must be a table", 4),
    f"{A}[servers.mgp]\ntrust_level = 'high'": ("mgp.trust_level cannot be 'high'", 5),
    f"{A}[servers.mgp.tools.x]\nrisk = 'none'": ("mgp.tools.x.risk cannot be 'none'", 5),
    f"{A}[servers.mgp]\nbackoff_base_ms = 40000": ("has a restart policy that cannot work", 1),
    f"{A}auto_restart = true\n[servers.mgp]\nrestart_policy = 'never'": ("it is given as never and as on_failure", 1),
    "servers = 1": ("servers must be a list of tables", 1),
    "[servers]\nid = 'a'": ("servers must be a list of tables", 1),
    "[kernel]\nlevel = 'L9'": ("kernel.level cannot be 'L9'", 2),
    "[kernel]\nbudget = { max_tokens = -1 }": ("kernel.budget.max_tokens cannot be -1", 2),
    "[kernel]\nbudget = { max_tokens = 1 }": ("kernel.budget cannot work", 2),
    "include = 'a.toml'": ("include must be a list of texts", 1),
}


@pytest.mark.req("MGP-15.2f")
@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_is_named_with_its_line_and_a_fix(tmp_path: Path, text: str) -> None:
    (mistake,) = mistakes(tmp_path, text)
    problem, line = WRONG[text]
    assert problem in mistake.problem
    assert mistake.where == f"{tmp_path / 'mgp.toml'}:{line}"
    assert mistake.fix


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    found = mistakes(tmp_path, f"{A}x = 1\ny = 2\n[kernel]\nlevel = 'no'")
    assert len(found) == 3
    with pytest.raises(UsageError, match="has 3 mistakes") as caught:
        load_kernel_config(tmp_path / "mgp.toml")
    assert str(caught.value).count("fix:") == 3


def test_a_misspelt_setting_gets_a_suggestion(tmp_path: Path) -> None:
    (mistake,) = mistakes(tmp_path, f"{A}prefx = 'a'")
    assert mistake.fix == "did you mean prefix?"
    (mistake,) = mistakes(tmp_path, "[[server]]\nid = 'a'")
    assert mistake.fix == "did you mean servers?"


def test_a_fix_writes_numbers_in_full(tmp_path: Path) -> None:
    (mistake,) = mistakes(tmp_path, "[kernel.budget]\nmax_tokens = -1")
    assert mistake.fix == "give a whole number from 0 to 10000000"


def test_stores_of_the_kernel_are_beside_its_file(tmp_path: Path) -> None:
    settings = loaded(tmp_path, '[kernel]\naudit = "sqlite:///a.db"\nevents = "sqlite:///e.db"').settings
    assert (settings.audit, settings.events) == (f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/e.db")
    for text in ("memory", "sqlite:////var/e.db", "redis://localhost/0"):
        assert loaded(tmp_path, f'[kernel]\nevents = "{text}"').settings.events == text


def test_a_variable_may_hold_a_whole_path(tmp_path: Path) -> None:
    entry = only(tmp_path, '[[servers]]\nid = "a"\ncommand = "x"\ncwd = "${HERE}/work"')
    assert entry.launch.fill_variables({"HERE": "/srv"}).cwd == "/srv/work"
    assert entry.launch.fill_variables({"HERE": "sub"}).cwd == f"{tmp_path}/sub/work"
    group = loaded(tmp_path, '[kernel.group]\nstore = "sqlite:///${HERE}/x.db"').settings.group
    assert group is not None
    assert expand_path_variables(group.store, {"HERE": "/srv"}) == "sqlite:////srv/x.db"
    assert expand_path_variables(group.store, {"HERE": "sub"}) == f"sqlite:///{tmp_path}/sub/x.db"
    assert expand_path_variables("redis://h/${DB}", {"DB": "/0"}) == "redis://h//0"


@pytest.mark.parametrize("content", [b"a = ", b"\xff", None])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "mgp.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"mgp\.toml"):
        load_kernel_config(tmp_path / "mgp.toml")


def test_a_file_may_include_others_whose_paths_start_from_their_own_folder(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.toml").write_text('[[servers]]\nid = "b"\ncommand = "./run"\n')
    config = loaded(tmp_path, f'include = ["more/b.toml"]\n{A}')
    assert [entry.id for entry in config.servers] == ["a", "b"]
    assert config.servers[1].launch.command == str(tmp_path / "more" / "run")
    assert config.files == (tmp_path / "mgp.toml", tmp_path / "more" / "b.toml")


def test_an_included_file_has_servers_only_and_no_id_twice(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(f"[kernel]\nname = 'x'\n{A}")
    found = mistakes(tmp_path, f'include = ["b.toml"]\n{A}')
    assert [each.where for each in found] == [f"{tmp_path / 'b.toml'}:1", f"{tmp_path / 'b.toml'}:3"]


@pytest.mark.parametrize(
    "text",
    [
        f"x = {'[' * 20_000}{']' * 20_000}",
        f"x = {'9' * 5_000}",
        'include = ["a\\u0000b"]',
        f"[kernel]\ndrain_secs = 0x{'f' * 5_000}",
        f"[kernel]\ndrain_secs{'.a' * 1_500} = 1",
    ],
    ids=["deep", "long number", "no path", "large number", "deep table"],
)
def test_a_file_that_is_too_much_for_its_reader_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="mgp.toml|a\0b"):
        loaded(tmp_path, text)


def test_what_has_no_effect_here_is_said(tmp_path: Path) -> None:
    config = loaded(tmp_path, f'{A}seal = "x"\nisolation = {{}}\n[paths]\nroot = "/"')
    assert len(config.notes) == 3
    assert all("no effect" in note for note in config.notes)


def test_a_secret_in_the_file_is_not_in_the_text_of_an_entry(tmp_path: Path) -> None:
    text = f"{A}args = ['--key=hunter2']\n[servers.env]\nTOKEN = 'hunter2'"
    assert "hunter2" not in repr(loaded(tmp_path, text))
    stores = "".join(f"{name} = 'postgres://me:hunter2@db/x'\n" for name in ("audit", "keys", "events"))
    remote = "[[servers]]\nid = 'a'\nurl = 'https://me:hunter2@example.org/mcp?key=hunter2'\n"
    assert "hunter2" not in repr(loaded(tmp_path, f"[kernel]\n{stores}{remote}"))


# ------------------------------------------------------------------------------------------------------------- schema


def test_the_shipped_schema_is_that_of_the_reader() -> None:
    assert read_shipped_schema() == format_schema(), "write what `format_schema` gives into mgp.schema.json"


@pytest.mark.req("MGP-15.2f")
def test_the_schema_accepts_what_the_reader_accepts() -> None:
    jsonschema.Draft7Validator.check_schema(schema())
    jsonschema.validate(tomllib.loads(SEED), json.loads(read_shipped_schema()))


NOT_IN_A_SCHEMA = ("both a command", "neither a command", "is taken by", "belongs to", "the transport", "cannot work",
                   "given as", "cannot be called", "cannot be nan")  # fmt: skip


@for_each_row("text", [text for text, (why, _) in WRONG.items() if not any(n in why for n in NOT_IN_A_SCHEMA)])
def test_the_schema_refuses_what_the_reader_refuses(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tomllib.loads(text), schema())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from([FILE_SETTINGS, KERNEL, SERVER_SETTINGS]), st.data())
def test_no_value_makes_the_reader_fail(table: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(table.settings)))
    found: list[ConfigMistake] = []
    table.parse_value({name: data.draw(VALUES)}, (), found.append)
    assert all(mistake.problem for mistake in found)


# -------------------------------------------------------------------------------------------------------------- lines


def test_lines_are_found_in_lists_of_tables_and_behind_long_texts() -> None:
    lines = lines_of('a = """\n[b]\n"""\n[[s]]\nx = 1\n[s."t.u"]\ny = 2\n[[s]]\n"x" = 3\n[s.t]\nz.w = 1\n')
    assert lines[("s", 0, "x")] == 5
    assert lines[("s", 0, "t.u", "y")] == 7
    assert lines[("s", 1, "x")] == 9
    assert lines[("s", 1, "t", "z", "w")] == 11
    assert ("b",) not in lines
    assert line_at(lines, ("s", 1, "t", "unknown")) == 10
    assert line_at(lines, ("nowhere",)) == 1
    for line in ("# isn't ''' a text", "a = \"'''\"", 'a = \'"""\'', 'a = """x\\"""y"""', "a = '''x\\'''"):
        assert line_at(lines_of(f"{line}\nx = 1\n"), ("x",)) == 2
    assert line_at(lines_of("# a\u2028b\r\nx = 1\r\n"), ("x",)) == 2


@given(st.text(max_size=200))
def test_no_text_makes_the_search_for_lines_fail(text: str) -> None:
    assert all(line >= 1 for line in lines_of(text).values())


@for_each_row(
    "text table",
    [
        ('[[servers]]\nid = "a"\ncommand = "b"\n[servers.mgp]\ndefault_policy = "opt-in"\n', "[kernel] or [[servers]]"),
        ('[kernel]\nrestart_policy = "never"\n', "[[servers]] or [servers.mgp]"),
        ('default_policy = "opt-in"\n', "[kernel] or [[servers]]"),
    ],
)
def test_a_setting_in_the_wrong_table_is_told_the_right_one(text: str, table: str, tmp_path: Path) -> None:
    (tmp_path / "mgp.toml").write_text(text)
    with pytest.raises(UsageError) as raised:
        load_kernel_config(tmp_path / "mgp.toml")
    assert f"write it in {table}" in str(raised.value)


@for_each_row("named meant", [("name", "id"), ("cmd", "command"), ("arguments", "args"), ("environment", "env")])
def test_a_setting_with_the_name_that_other_files_use_is_told_ours(named: str, meant: str, tmp_path: Path) -> None:
    (tmp_path / "mgp.toml").write_text(f'[[servers]]\n{named} = "a"\n')
    with pytest.raises(UsageError) as raised:
        load_kernel_config(tmp_path / "mgp.toml")
    assert f"did you mean {meant}?" in str(raised.value)
