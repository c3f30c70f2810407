from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.conformance.suite_install import ROOT
from tests.peers.isolation import environment

LOOK = """
import socket
from tests.peers.isolation import raise_loopback
raise_loopback()
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname()).close()
print([name for _, name in socket.if_nameindex()])
"""


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("unshare"), reason="needs Linux's unshare")
def test_peers_have_loopback_and_no_other_interface():
    enter = ["unshare", "--net", "--map-root-user"]
    if subprocess.run([*enter, "true"], capture_output=True).returncode:
        pytest.skip("this user may not make a network of its own")
    looked = subprocess.run([*enter, sys.executable, "-c", LOOK], capture_output=True, text=True, cwd=ROOT)
    assert looked.stdout.strip() == "['lo']", looked.stderr


def test_a_peer_sees_nothing_of_the_users_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET_KEY", "x")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    seen = environment(str(tmp_path))
    assert not {"SECRET_KEY", "HTTPS_PROXY"} & set(seen)
    assert seen["DO_NOT_TRACK"] == "1"
