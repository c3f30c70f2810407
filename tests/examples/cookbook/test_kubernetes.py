from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]
import pytest
import yaml

from defserve.client import Client, connect_url
from defserve.kernel.config.loading import load_kernel_config
from defserve.kernel.kernel import Kernel
from examples.cookbook.kubernetes.server import server
from tests.examples.cookbook.pages import PROGRAMS
from tests.examples.cookbook.served import started
from tests.rows import for_each_row
from tests.stores.redis_server import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.anyio

HERE = PROGRAMS / "kubernetes"
FILES = sorted(HERE.glob("*.yaml"))
# The first has `preStop.sleep`.
VERSIONS = ("1.30", "1.34", kubernetes_validate.latest_version())


def read_manifests(*files: Path) -> list[dict[str, Any]]:
    return [each for file in files for each in yaml.safe_load_all(file.read_text())]


def read_pods(*files: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The pod and the container of each deployment."""
    for each in read_manifests(*files):
        if each["kind"] == "Deployment":
            pod = each["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            yield pod, container


@for_each_row("version", VERSIONS)
def test_every_manifest_is_as_the_published_schemas_want_it(version: str):
    for each in read_manifests(*FILES):
        kubernetes_validate.validate(each, version, strict=True)
        wrong = {**each, "spec": {**each.get("spec", {}), "replica": 2}}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, version, strict=True)


def test_what_the_manifests_name_is_there():
    for file in FILES:
        manifests = read_manifests(file)
        ((pod, container),) = read_pods(file)
        labels = next(each for each in manifests if each["kind"] == "Deployment")["spec"]["template"]["metadata"][
            "labels"
        ]
        for each in manifests:
            spec = each.get("spec", {})
            for selector in (spec.get("selector"), spec.get("podSelector")):
                assert selector is None or selector.get("matchLabels", selector) == labels
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        address = container["args"][container["args"].index("--on") + 1]
        host = container["args"][container["args"].index("--allow-host") + 1]
        assert f":{ports['http']}/" in address
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                asked = container[probe]["httpGet"]
                assert asked["port"] == "http" and asked["httpHeaders"] == [{"name": "Host", "value": host}]
        drain = server.limits.drain
        assert pod["terminationGracePeriodSeconds"] > container["lifecycle"]["preStop"]["sleep"]["seconds"] + drain


@pytest.mark.slow
async def test_a_pod_answers_its_probes_and_finishes_its_calls_within_the_grace_period(tmp_path: Path):
    ((pod, container),) = read_pods(HERE / "bakery.yaml")
    grace = pod["terminationGracePeriodSeconds"] - container["lifecycle"]["preStop"]["sleep"]["seconds"]
    command = [sys.executable, "server.py", *container["args"]]
    with started(command, HERE, os.environ, tmp_path / "log") as (process, port):
        headers = {"host": container["readinessProbe"]["httpGet"]["httpHeaders"][0]["value"]}
        url = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=url, headers=headers) as probe:
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                assert (await probe.get(container[kind]["httpGet"]["path"])).status_code == 200
            async with Client(await connect_url(f"{url}/mcp", headers=headers), version="2026-07-28") as client:
                told = list[float]()
                baking = asyncio.create_task(
                    client.call_raw("bake", {"seconds": 3}, on_progress=lambda done, total, message: told.append(done))
                )
                await until(lambda: bool(told))
                process.terminate()
                # The pod gets no new calls, and is not restarted while it drains.
                await until_status(probe, container["readinessProbe"]["httpGet"]["path"], 503)
                assert (await probe.get(container["livenessProbe"]["httpGet"]["path"])).status_code == 200
                assert (await baking)["content"][0]["text"] == "the cake is ready"
        assert await asyncio.to_thread(process.wait, grace) == 0


async def until_status(probe: httpx2.AsyncClient, path: str, status: int) -> None:
    async with asyncio.timeout(30):
        while (await probe.get(path)).status_code != status:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.01)


async def test_two_kernels_of_the_manifest_share_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DEFSERVE_KEYS_PEPPER", "a pepper that is long enough")
    ((_, container),) = read_pods(HERE / "kernels.yaml")
    assert [each["name"] for each in container["env"]] == ["POD_IP"]
    redis = RedisServer().start()
    try:
        text = read_manifests(HERE / "kernels.yaml")[0]["data"]["mgp.toml"]
        replaced = {
            "redis://redis:6379/0": redis.address,
            '"python"': f'"{sys.executable}"',
            "/srv": str(HERE),
            ":8300": ":0",  # both pods are this machine
        }
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "mgp.toml").write_text(text)
        environ = {**os.environ, "POD_IP": "127.0.0.1", "STORE": redis.address}
        one, other = (Kernel(load_kernel_config(tmp_path / "mgp.toml"), environ) for _ in range(2))
        async with one.server.connect() as here, other.server.connect() as there:
            await until(lambda: one.members["bakery"].state == other.members["bakery"].state == "connected")
            assert await here.call("bake", seconds=0) == await there.call("bake", seconds=0) == "the cake is ready"
            assert one.ps()[0]["kernel"] == other.ps()[0]["kernel"]
    finally:
        redis.remove()
