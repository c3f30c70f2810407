"""With every rule switched off (`unrestricted`), the jail alone keeps a program from the host."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from defserve.sandbox import SandboxLimits, probe, run
from defserve.sandbox.job import RunStopper, SandboxJob, make_sandbox_job
from defserve.sandbox.running import run_in_jail
from tests.sandbox.conftest import Program

SECRET = "canary-5e0a71"

# Each ends in an expression that is only ever true when the host was reached.
REACHING = {
    "reads a file": "open('/etc/passwd').read()",
    "reads a file by descriptor": "import os\nos.read(os.open('/etc/passwd', os.O_RDONLY), 9)",
    "reads a file relative to a directory": "import os\nos.open('etc/passwd', 0, dir_fd=os.open('/', os.O_PATH))",
    "lists the root": "import os\nos.listdir('/')",
    "lists the home": "import os\nos.listdir('/root')",
    "walks": "import os\nlist(os.walk('/etc'))[0]",
    "reads its parent's environment": "import os\nopen(f'/proc/{os.getppid()}/environ').read()",
    "reads its parent's memory": "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    "reads its own maps": "open('/proc/self/maps').read()",
    "reads a link": "import os\nos.readlink('/proc/self/exe')",
    "reads its parent's descriptors": "import os\nos.listdir(f'/proc/{os.getppid()}/fd')",
    "writes a file": "open('/tmp/defserve-sandbox-canary', 'w').write('x')",
    "writes a file in memory": "import os\nos.memfd_create('x')",
    "makes a directory": "import os\nos.mkdir('/tmp/defserve-sandbox-canary')\nTrue",
    "makes a fifo": "import os\nos.mkfifo('/tmp/defserve-sandbox-canary')\nTrue",
    "makes a link": "import os\nos.symlink('/etc', '/tmp/defserve-sandbox-canary')\nTrue",
    "changes a mode": "import os\nos.chmod('/tmp', 0o777)\nTrue",
    "changes an owner": "import os\nos.chown('/tmp', 0, 0)\nTrue",
    "changes a time": "import os\nos.utime('/tmp')\nTrue",
    "changes directory": "import os\nos.chdir('/etc')\nTrue",
    "changes root": "import os\nos.chroot('/tmp')\nTrue",
    "forks": "import os\nos.fork()\nTrue",
    "forks a terminal": "import pty\npty.fork()\nTrue",
    "spawns": "import subprocess\nsubprocess.run(['/bin/true'])\nTrue",
    "spawns by posix_spawn": "import os\nos.posix_spawn('/bin/true', ['true'], {})\nTrue",
    "starts a shell": "import os\nos.system('true') == 0",
    "execs": "import os\nos.execv('/bin/echo', ['echo', '{\"status\": \"ok\", \"value\": true}'])",
    "starts a worker process": "import multiprocessing as m\nm.get_context('fork').Process(target=print).start()\nTrue",
    "opens a socket": "import socket\nsocket.socket()\nTrue",
    "opens a datagram socket": "import socket\nsocket.socket(type=socket.SOCK_DGRAM)\nTrue",
    "opens a unix socket": "import socket\nsocket.socket(socket.AF_UNIX)\nTrue",
    "opens a netlink socket": "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)\nTrue",
    "pairs datagram sockets": "import socket\nsocket.socketpair(type=socket.SOCK_DGRAM)\nTrue",
    "asks a name server": "import socket\nsocket.getaddrinfo('example.com', 80)",
    "kills its parent": "import os\nos.kill(os.getppid(), 0)\nTrue",
    "kills everyone": "import os\nos.kill(-1, 0)\nTrue",
    "kills through a descriptor": "import os, signal\nos.pidfd_open(os.getppid())\nTrue",
    "owns a descriptor's signals": "import fcntl, os\nfcntl.fcntl(1, fcntl.F_SETOWN, os.getppid())\nTrue",
    "types into a terminal": "import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSTI, b'x')\nTrue",
    "becomes someone": "import os\nos.setuid(0)\nTrue",
    "lifts its limits": "import resource as r\nr.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY, r.RLIM_INFINITY))\nTrue",
    "changes its limits": "import resource as r\nr.setrlimit(r.RLIMIT_NOFILE, (9, 9))\nTrue",
    "raises its priority": "import os\nos.setpriority(os.PRIO_PROCESS, 0, -5)\nTrue",
    "leaves its session": "import os\nos.setpgid(0, 0)\nos.setsid()\nTrue",
    "imports what is installed": "import pydantic_core\nTrue",
    "imports the framework": "import defserve.server.server\nTrue",
    "opens a browser": "import webbrowser\nwebbrowser.open('http://example.com')",
}

# The same by raw system calls, where Python offers none: x86_64 and aarch64 numbers.
RAW = {
    "ptrace": (101, 117),
    "unshare": (272, 97),
    "io_uring_setup": (425, 425),
    "bpf": (321, 280),
    "keyctl": (250, 219),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "prctl": (157, 167),
    "mount": (165, 40),
    "seccomp": (317, 277),
    "clone3": (435, 435),
    "open_by_handle_at": (304, 265),
}


# Runs programs one after another, each with names of its own, and tells what reached the host. What raises has not.
ONE_BY_ONE = """
import ast
reached = {}
for name, source in programs.items():
    *first, last = ast.parse(source).body
    names = {}
    try:
        exec(compile(ast.Module(first, []), name, "exec"), names)
        if value := eval(compile(ast.Expression(last.value), name, "eval"), names):
            reached[name] = repr(value)
    except Exception:
        pass
result = reached
"""


@pytest.mark.slow
@pytest.mark.parametrize("attack", REACHING)
def test_the_jail_contains_a_program_that(attack: str, jailed: Program) -> None:
    outcome = jailed(REACHING[attack])
    assert not outcome.value and not outcome.stdout
    assert outcome.status in ("ok", "error")
    assert not Path("/tmp/defserve-sandbox-canary").exists()


def test_the_jail_contains_programs_that_try_one_thing_after_another(jailed: Program) -> None:
    outcome = jailed(f"programs = {REACHING!r}\n{ONE_BY_ONE}")
    assert (outcome.status, outcome.value, outcome.stdout) == ("ok", {}, ""), outcome
    assert not Path("/tmp/defserve-sandbox-canary").exists()


def test_the_programs_that_run_one_after_another_tell_what_they_reach(jailed: Program) -> None:
    programs = {"raises": "1 / 0\nTrue", "reaches": "x = 1\nx + 1", "forgets": "x"}
    assert jailed(f"programs = {programs!r}\n{ONE_BY_ONE}").value == {"reaches": "2"}


def test_the_jail_refuses_raw_calls(jailed: Program) -> None:
    numbers = {call: number[os.uname().machine == "aarch64"] for call, number in RAW.items()}
    outcome = jailed(
        f"import ctypes\ncall = ctypes.CDLL(None).syscall\n"
        f"{{name: call(number, 0, 0, 0, 0, 0) for name, number in {numbers}.items()}}"
    )
    assert outcome.value == dict.fromkeys(RAW, -1)


@pytest.mark.slow
def test_a_file_of_the_host_is_neither_read_nor_changed(jailed: Program, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    for mode in ("r", "r+", "w", "a", "x"):
        outcome = jailed(f"open({str(file)!r}, {mode!r}).read()")
        assert outcome.status == "error" and "PermissionError" in (outcome.error or "")
    for change in ("remove", "unlink", "rmdir"):
        assert jailed(f"import os\nos.{change}({str(file)!r})").status == "error"
    assert jailed(f"import os\nos.rename({str(file)!r}, {str(file) + '2'!r})").status == "error"
    assert jailed(f"import os\nos.truncate({str(file)!r}, 0)").status == "error"
    assert file.read_text() == SECRET


def test_a_pipe_of_the_host_is_not_reached_through_proc(jailed: Program) -> None:
    read, write = os.pipe()
    os.write(write, SECRET.encode())
    outcome = jailed(f"import os\nopen(f'/proc/{{os.getppid()}}/fd/{read}').read()")
    os.close(write)
    assert os.read(read, 100) == SECRET.encode()
    os.close(read)
    assert outcome.status == "error"


def test_the_environment_stays_behind(jailed: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFSERVE_SECRET", SECRET)
    outcome = jailed("import os\ndict(os.environ)")
    assert set(outcome.value) <= {"LC_CTYPE"}


def test_a_listening_port_is_not_reached(jailed: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcome = jailed(f"import socket\nsocket.create_connection(('127.0.0.1', {port}))")
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert outcome.status == "error"


def test_descriptors_of_the_host_are_not_inherited(jailed: Program, tmp_path: Path) -> None:
    with open(tmp_path / "open", "w+") as file:
        os.set_inheritable(file.fileno(), True)
        outcome = jailed(
            "import os\nfound = []\nfor fd in range(3, 200):\n    try:\n        found.append(os.fstat(fd).st_ino)\n"
            "    except OSError:\n        pass\nresult = found"
        )
        # One is the pipe the report goes through. A libffi may have opened itself.
        assert len(outcome.value) <= 2 and os.fstat(file.fileno()).st_ino not in outcome.value


def test_paths_of_the_host_are_not_in_an_error(jailed: Program) -> None:
    outcome = jailed(f"open({sys.prefix + '/pyvenv.cfg'!r})")
    assert outcome.error is not None and sys.prefix not in outcome.error
    outcome = jailed("import json\njson.loads('x')")
    assert "/" not in (outcome.error or "")


class TestLimits:
    def test_a_loop_ends_with_its_time(self, jailed: Program) -> None:
        outcome = jailed("while True:\n    pass", seconds=0.4)
        assert outcome.status == "timeout" and 390 <= outcome.duration_ms < 10_000

    def test_a_sleeper_ends_with_its_time(self, jailed: Program) -> None:
        outcome = jailed("import time\nprint('begun')\ntime.sleep(60)", seconds=1.5)
        assert outcome.status == "timeout" and outcome.stdout == "begun\n"

    def test_a_program_that_stops_itself_ends_with_its_time(self, jailed: Program) -> None:
        assert jailed("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", seconds=0.5).status == "timeout"

    @pytest.mark.slow
    def test_a_program_deaf_to_signals_ends_with_its_time(self, jailed: Program) -> None:
        deaf = "import signal\nfor s in range(1, 64):\n    try:\n        signal.signal(s, signal.SIG_IGN)\n"
        assert (
            jailed(deaf + "    except (OSError, ValueError): pass\nwhile True: pass", seconds=0.7).status == "timeout"
        )

    @pytest.mark.slow
    def test_processor_time_is_limited_apart_from_the_clock(self, jailed: Program) -> None:
        outcome = jailed("while True:\n    pass", seconds=20, cpu_seconds=1)
        assert outcome.status == "timeout" and outcome.duration_ms < 19_000

    def test_memory_is_limited(self, jailed: Program) -> None:
        outcome = jailed("kept = []\nwhile True:\n    kept.append(bytearray(1_000_000))", memory_bytes=100 * 2**20)
        assert outcome.status == "memory"

    @pytest.mark.slow
    def test_one_huge_value_is_refused_its_memory(self, jailed: Program) -> None:
        assert jailed("'x' * 10**11").status == "memory"
        assert jailed("10 ** 10 ** 10", seconds=2).status in ("memory", "timeout")

    def test_too_little_memory_even_to_begin_is_an_outcome(self, jailed: Program) -> None:
        assert jailed("print('ran')", memory_bytes=2**20).status in ("memory", "killed")

    def test_a_program_may_use_the_memory_it_was_given(self, jailed: Program) -> None:
        assert jailed("len(bytearray(60 * 2**20))", memory_bytes=160 * 2**20).value == 60 * 2**20

    def test_printing_without_end_is_cut(self, jailed: Program) -> None:
        outcome = jailed("while True:\n    print('x' * 1000)", output_bytes=10_000)
        assert outcome.status == "output" and len(outcome.stdout) == 10_000

    def test_printing_around_python_is_cut_too(self, jailed: Program) -> None:
        outcome = jailed("import os\nwhile True:\n    os.write(2, b'x' * 65536)", output_bytes=10_000)
        assert outcome.status == "output" and len(outcome.stdout) == 10_000

    def test_a_value_too_large_is_cut(self, jailed: Program) -> None:
        assert jailed("'x' * 20_000", output_bytes=10_000).status == "output"

    def test_flooding_the_report_is_cut(self, jailed: Program) -> None:
        flood = "import os\nfor fd in range(3, 1025):\n    try:\n        while True: os.write(fd, b'x' * 65536)\n"
        assert jailed(flood + "    except OSError: pass", output_bytes=10_000).status == "output"

    def test_a_fork_bomb_has_no_second_process(self, jailed: Program) -> None:
        bomb = "import os\ncount = 0\nfor _ in range(1000):\n    try:\n        os.fork()\n        count += 1\n"
        assert jailed(bomb + "    except OSError: pass\ncount").value == 0

    def test_a_thread_bomb_ends(self, jailed: Program) -> None:
        bomb = "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(60,)).start()"
        assert jailed(bomb, seconds=2).status in ("error", "memory", "timeout")

    def test_recursion_without_end_is_an_error(self, jailed: Program) -> None:
        outcome = jailed("def f():\n    return f()\nf()")
        assert outcome.status == "error" and "RecursionError" in (outcome.error or "")

    def test_recursion_that_overflows_the_stack_is_an_outcome(self, jailed: Program) -> None:
        deep = (
            "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self): return repr(self)\nrepr(A())"
        )
        assert jailed(deep).status in ("killed", "memory", "error")


class TestCrashes:
    def test_a_segfault_is_an_outcome(self, jailed: Program) -> None:
        outcome = jailed("import ctypes\nctypes.string_at(0)")
        assert outcome.status == "killed" and "SIGSEGV" in (outcome.error or "")

    def test_an_abort_is_an_outcome(self, jailed: Program) -> None:
        assert jailed("import os\nos.abort()").status == "killed"

    def test_killing_itself_is_an_outcome(self, jailed: Program) -> None:
        assert jailed("import os\nos.kill(os.getpid(), 9)").error == "the program was ended by SIGKILL"

    def test_leaving_without_a_word_is_an_error(self, jailed: Program) -> None:
        outcome = jailed("import os\nos._exit(0)")
        assert outcome.status == "error" and "exit code 0" in (outcome.error or "")

    def test_closing_every_descriptor_is_an_outcome(self, jailed: Program) -> None:
        outcome = jailed("import os\nos.closerange(0, 1025)\nwhile True: pass")
        assert outcome.status == "killed" and outcome.duration_ms < 20_000

    @pytest.mark.parametrize("forged", ["nonsense", "[]", "{}", '{"status": 5}', '{"status": "rejected"}', "[" * 9_000])
    def test_a_forged_report_is_only_data(self, forged: str, jailed: Program) -> None:
        forge = f"import os\nfor fd in range(3, 1025):\n    try: os.write(fd, {forged.encode()!r})\n"
        assert jailed(forge + "    except OSError: pass\nos._exit(0)").status == "error"

    def test_a_value_whose_repr_raises_is_an_error(self, jailed: Program) -> None:
        assert jailed("class A:\n    def __repr__(self): raise ValueError\nA()").status == "error"

    def test_an_exception_whose_text_raises_is_an_error(self, jailed: Program) -> None:
        outcome = jailed("class E(BaseException):\n    def __str__(self): raise E\nraise E")
        assert outcome.status == "error" and (outcome.error or "").startswith("Traceback")

    def test_an_exception_whose_class_has_no_name_is_an_error(self, jailed: Program) -> None:
        nameless = "class M(type):\n    @property\n    def __name__(cls): raise KeyError\n"
        outcome = jailed(nameless + "class E(Exception, metaclass=M): pass\nraise E")
        assert outcome.status == "error" and outcome.stdout == ""


class TestTheRunItself:
    def test_other_bytes_than_those_judged_are_refused(self, jailed: Program, monkeypatch: pytest.MonkeyPatch) -> None:
        judged = make_sandbox_job("1 + 1", "unrestricted", None, None)
        monkeypatch.setattr(SandboxJob, "digest", judged.digest)
        outcome = run_in_jail(replace(judged, source=b"print('swapped')"), probe(), RunStopper())
        assert outcome.status == "rejected" and outcome.stdout == ""
        assert [violation.rule for violation in outcome.violations] == ["hash"]

    def test_a_process_that_cannot_be_confined_runs_nothing(
        self, jailed: Program, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from defserve.errors import Refused

        # A limit no kernel takes.
        job = replace(
            make_sandbox_job("print('ran')", "unrestricted", None, None), limits=SandboxLimits(memory_bytes=2**70)
        )
        with pytest.raises(Refused) as refusal:
            run_in_jail(job, probe(), RunStopper())
        assert refusal.value.data["reason"]

    @pytest.mark.slow
    @pytest.mark.usefixtures("descriptors")
    def test_eight_at_once_do_not_mix(self, jailed: Program) -> None:
        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(lambda n: jailed(f"print({n})\n{n} * {n}", seconds=20), range(8)))
        assert [outcome.value for outcome in outcomes] == [n * n for n in range(8)]
        assert [outcome.stdout for outcome in outcomes] == [f"{n}\n" for n in range(8)]

    @pytest.mark.slow
    @pytest.mark.usefixtures("descriptors")
    def test_nothing_is_left_behind_whatever_the_end(self, jailed: Program) -> None:
        for source in ("1", "1/0", "while True: pass", "while True: print('x' * 999)", "import os\nos.abort()"):
            jailed(source, seconds=0.5)

    @pytest.mark.usefixtures("descriptors")
    def test_stopping_ends_it_at_once(self, jailed: Program) -> None:
        stop, began = RunStopper(), time.monotonic()
        threading.Timer(0.2, stop.stop_run).start()
        outcome = run_in_jail(
            make_sandbox_job("while True: pass", "unrestricted", None, SandboxLimits(seconds=50)), probe(), stop
        )
        assert outcome.status == "killed" and time.monotonic() - began < 20

    def test_stopped_before_it_began_it_does_not_run(self, jailed: Program) -> None:
        stop = RunStopper()
        stop.stop_run()
        outcome = run_in_jail(make_sandbox_job("print('ran')", "unrestricted", None, None), probe(), stop)
        assert outcome.status == "killed" and outcome.stdout == ""

    def test_the_process_dies_with_its_parent(self, jailed: Program, tmp_path: Path) -> None:
        import subprocess

        host = (
            "from defserve.sandbox import run, SandboxLimits\n"
            "run('while True: pass', level='unrestricted', limits=SandboxLimits(seconds=60))"
        )
        path = os.pathsep.join(filter(None, sys.path))
        process = subprocess.Popen([sys.executable, "-c", host], env={"PYTHONPATH": path})
        child = _child_of(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 10
        while _is_running(child):
            assert time.monotonic() < deadline, "the jailed process outlived its host"
            time.sleep(0.02)


def _child_of(pid: int) -> int:
    """The confined child of a process, once it runs."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if "Seccomp:\t2" in Path(f"/proc/{child}/status").read_text():
                    return int(child)
        time.sleep(0.02)
    raise AssertionError("no child was started")


def _is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


class TestWhatHonestCodeNeeds:
    @pytest.mark.parametrize(
        ("source", "value"),
        [
            ("import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    return 5\nasyncio.run(f())", 5),
            ("from concurrent.futures import ThreadPoolExecutor as T\nlist(T(3).map(abs, [-1, 2]))", [1, 2]),
            ("import sqlite3\nsqlite3.connect(':memory:').execute('select 1').fetchone()", [1]),
            ("import hashlib\nhashlib.sha256(b'').hexdigest()[:8]", "e3b0c442"),
            ("import zlib, gzip, bz2, lzma\nlen(lzma.decompress(lzma.compress(b'abc')))", 3),
            ("import datetime\ndatetime.datetime.strptime('2020', '%Y').year", 2020),
            ("import xml.etree.ElementTree as e\ne.fromstring('<a b=\"1\"/>').get('b')", "1"),
            ("import uuid, secrets, random, tempfile, shutil, ssl, logging, csv, inspect, typing\n1", 1),
            ("'münchen'.encode('idna').decode()", "xn--mnchen-3ya"),
            ("from dataclasses import dataclass, asdict\n@dataclass\nclass A:\n    x: int\nasdict(A(1))", {"x": 1}),
            ("import io, sys\nsys.stdin.read()", ""),
            ("if __name__ == '__main__':\n    result = 'main'", "main"),
        ],
    )
    def test_the_standard_library_works_inside(self, source: str, value: object, jailed: Program) -> None:
        outcome = jailed(source)
        assert (outcome.status, outcome.value) == ("ok", value), outcome.error

    def test_the_layers_are_told(self, jailed: Program) -> None:
        outcome = jailed("1")
        assert (outcome.engine, outcome.layers) == ("jail", ("rlimits", "landlock", "seccomp"))

    def test_run_works_at_the_standard_level(self, jailed: Program) -> None:
        assert run("sum(range(10))").value == 45
