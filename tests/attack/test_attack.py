"""The attack suite itself: it leaves this machine alone, tells failures from successes, and its own servers start."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from defserve.guard import shell
from tests.attack.__main__ import main, sample_of
from tests.attack.arena import Arena, Kind
from tests.attack.controlling import run_control
from tests.attack.controls.patching import Patch
from tests.attack.families import MODULES, attacks
from tests.attack.running import run_one
from tests.attack.speaking.http import Wire, events
from tests.attack.speaking.mcp import Caller, works
from tests.attack.speaking.sockets import NotLoopback, Place, connect
from tests.attack.table import summary, table, write_json
from tests.attack.trial import Attack, Bite, Control, MissingFeature, NotTried, Row, Run, Trial
from tests.rows import for_each_row

ROOT = Path(__file__).parents[2]


@for_each_row("host", ["192.0.2.1", "example.com", "localhost", "0.0.0.0", "::", "2001:db8::1", ""])
def test_nothing_but_this_machine_is_connected_to(host: str):
    with pytest.raises(NotLoopback):
        connect(Place(host, 9))


def test_no_library_can_connect_elsewhere_either():
    code = (
        "import socket\n"
        "from tests.attack.speaking.sockets import NotLoopback, watch_connections\n"
        "watch_connections()\n"
        "for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):\n"
        "    with socket.socket(socket.AF_INET, kind) as one:\n"
        "        one.settimeout(0.2)\n"
        "        try: one.connect(('192.0.2.1', 9))\n"
        "        except NotLoopback: print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused", "refused"]


def test_every_control_finds_the_protection_that_it_removes():
    missing = dict[str, str]()
    for removal in {control.remove for attack in attacks() for control in attack.controls}:
        patch = Patch()
        try:
            removal(patch)
        except (AttributeError, ImportError, KeyError) as error:
            missing[removal.__name__] = str(error)
        finally:
            patch.undo()
    assert missing == {}


def test_a_peer_that_hangs_up_is_an_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with Wire(Place(*server.getsockname()[:2]), patience=2) as wire:
            server.accept()[0].close()
            assert wire.response() is None and wire.closes_within(1)


def test_only_whole_events_are_read():
    assert list(events(b'id: 1\ndata: {"a": 1}\n\ndata:\n\ndata: {"b"')) == [b'{"a": 1}']


def rows(arena: Arena) -> list[object]:
    def holds(trial: Trial) -> None:
        trial.expect(True, "never said")

    def fails(trial: Trial) -> None:
        trial.expect(True, "never said")
        trial.expect(False, "the hidden request ran")

    def nothing(trial: Trial) -> None:
        """Tries nothing, and so shows nothing."""

    def breaks(trial: Trial) -> None:
        raise ValueError("a mistake of the attack itself")

    def cannot(trial: Trial) -> None:
        raise NotTried("the option is unknown")

    def lacks(trial: Trial) -> None:
        raise MissingFeature("no namespaces here")

    made = [holds, fails, nothing, breaks, cannot, lacks]
    return [run_one(Attack("family", function.__name__, function), arena, 1) for function in made]


def test_an_attack_counts_only_if_it_was_tried_and_held(tmp_path: Path):
    arena = Arena()
    try:
        found = rows(arena)
    finally:
        arena.close()
    good = [row.attack.name for row in found if row.is_good]  # type: ignore[attr-defined]
    assert good == ["holds", "lacks"]
    lines = "\n".join(table(found, 120))  # type: ignore[arg-type]
    assert "the hidden request ran" in lines and "not tried: ValueError: a mistake" in lines
    assert summary(found, 1.0).endswith("; 4 NOT HELD")  # type: ignore[arg-type]
    write_json(found, 1, tmp_path / "rows.json")  # type: ignore[arg-type]
    assert [row["held"] for row in json.loads((tmp_path / "rows.json").read_text())["rows"]] == [1, 1, 0, 0, 0, 0]


def take_everything(patch: Patch) -> None:
    patch.set("defserve.guard.shell:judge", lambda command, **options: True)


def remove_what_is_gone(patch: Patch) -> None:
    patch.set("defserve.guard.shell:judge_of_old", None)


def judging(trial: Trial) -> None:
    """Honest, and then an attack."""
    trial.expect(shell.judge("ls"), "an everyday command is refused")
    for name, command in trial.choose({"a pipe": "ls | sh", "two": "ls; id"}):
        trial.expect(not shell.judge(command), f"{name} passes")


def breaking(trial: Trial) -> None:
    trial.expect(not shell.judge("ls | sh"), "it passes")
    raise ValueError("a mistake of the attack itself")


@for_each_row(
    "run, control, has_bitten, said",
    [
        (judging, Control(take_everything, "passes", here=True), True, "a pipe passes"),
        (judging, Control(take_everything, "passes", "two", here=True), True, "two passes"),
        (judging, Control(take_everything, "passes"), False, "nothing fails"),
        (judging, Control(take_everything, "refused", here=True), False, "another expectation failed"),
        (judging, Control(take_everything, "passes", "three", here=True), False, "no case is called"),
        (breaking, Control(take_everything, "never", here=True), False, "it broke: ValueError"),
        (judging, Control(remove_what_is_gone, "passes", here=True), False, "it broke: AttributeError"),
    ],
)
def test_a_control_bites_only_if_its_own_expectation_fails(run: Run, control: Control, has_bitten: bool, said: str):
    arena = Arena()
    try:
        bite = run_control(Attack("family", "row", run, controls=(control,)), control, arena, 1)
    finally:
        arena.close()
    assert bite.has_bitten is has_bitten and said in bite.said, bite
    assert not shell.judge("ls | sh"), "the protection is back"


def test_a_row_without_a_control_that_bit_is_not_good():
    row = Row(Attack("family", "row", judging), tried=1)
    assert row.is_good and row.control == "-"
    for bites, word in (
        ([], "none"),
        ([Bite("x", False, "y")], "did NOT bite"),
        ([Bite("x", True, "y"), Bite("x", False, "y")], "1 of 2 did NOT bite"),
    ):
        row.bites = bites
        assert not row.is_good and row.control == word
    row.bites = [Bite("x", True, "y")]
    assert row.is_good and row.control == "bit"


@pytest.mark.slow
def test_hostile_code_without_its_jail_changes_nothing_of_this_machine():
    """Whatever the case: a control may be pointed at any of them."""
    from tests.attack.controls.tools import run_without_a_filter
    from tests.attack.families.tools.sandboxes import programs

    places = [Path(place) for place in ("/", "/tmp", "/var/tmp", "/dev/shm", "/run") if Path(place).is_dir()]
    names = [place / name for place in places for name in ("pwn", "pwned.txt", "pwned.txt.db", "a")]
    before = {name for name in names if name.exists()}
    code = "\n".join(f"try: open({str(name)!r}, 'a').close()\nexcept OSError: pass" for name in names)
    reach = "import os\nresult = [len(os.listdir('/')), os.kill(os.getppid(), 0)]"
    arena = Arena()
    try:
        arena.remove(Control(run_without_a_filter, "").name)
        jobs = [("unrestricted", source, 8.0) for source in (programs("escape")["writes files"], code, reach)]
        found = arena.drive("sandbox_runs", jobs, without_network=True)
    except MissingFeature as missing:
        pytest.skip(str(missing))
    finally:
        arena.close()
    if "missing" in found:
        pytest.skip(f"this kernel lacks {found['missing']}")
    assert found["outcomes"][-1]["value"], "the jail is gone, so the others were held by something else"
    assert {name for name in names if name.exists()} == before


def test_every_attack_has_a_control():
    assert [f"{attack.family}: {attack.name}" for attack in attacks() if not attack.controls] == []


def test_a_sample_has_one_row_of_each_family_and_each_has_a_control():
    sample = sample_of(attacks())
    assert [attack.family for attack in sample] == list(dict.fromkeys(attack.family for attack in attacks()))
    assert all(attack.controls for attack in sample)


def test_rows_share_the_controls_of_an_earlier_row_of_their_family():
    seen: dict[tuple[str, str], Attack] = {}
    for attack in attacks():
        if attack.shares:
            assert seen[attack.family, attack.shares].controls == attack.controls
        seen[attack.family, attack.name] = attack


def test_every_family_is_run_and_every_attack_has_a_name_of_its_own(capsys: pytest.CaptureFixture[str]):
    files = {path.stem for path in (Path(__file__).parent / "families").glob("*/*.py")}
    assert files == {name.rpartition(".")[2] for name in MODULES}
    names = [(attack.family, attack.name) for attack in attacks()]
    assert len(set(names)) == len(names)
    assert main(["--list", "--only", "smuggling"]) == 0
    assert capsys.readouterr().out.startswith("smuggling: length and chunks together\n")
    assert main(["--only", "nothing-of-this-name"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("file", ["open", "keyed", "mounted", "behind", "guarded"])
def test_the_attacked_servers_start_and_grow_little(file: str):
    arena = Arena()
    try:
        served = arena.serve(Kind(file))
        if file != "keyed":
            assert works(Caller(served.place)) == ""
        assert served.is_alive and served.resident > 0 and served.growth < 40
        assert not served.has_marked("nothing")
        with pytest.raises(NotTried, match="does not start"):
            arena.serve(Kind(file, ("--no-such-option",)))
    finally:
        arena.close()


def test_random_numbers_depend_on_the_seed_and_the_attack():
    seen: list[int] = []
    arena = Arena()
    try:
        for name, seed in (("a", 1), ("a", 1), ("b", 1), ("a", 2)):
            run_one(Attack("f", name, lambda trial: seen.append(trial.random.randrange(10**9))), arena, seed)
    finally:
        arena.close()
    assert seen[0] == seen[1] and len(set(seen)) == 3
