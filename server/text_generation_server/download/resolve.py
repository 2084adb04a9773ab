"""From what the user named to a local folder with everything in it.

A name is the demo model, a GGUF file, a local folder or a model of a hub; the folder holds config.json, weights,
tokenizer.json and what goes with them. Nothing is ever written to a folder of the user's. What reaches a hub or
converts a file is loaded when it is needed: it takes longer than finding a folder that is there.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from text_generation_server.download.cache import make_once
from text_generation_server.download.checkpoint_files import Wanted, check_folder, has_tokenizer
from text_generation_server.download.demo_model import demo_model_folder
from text_generation_server.download.errors import DownloadError
from text_generation_server.download.linked_folder import folder_key, link_files
from text_generation_server.download.places import CACHE_VARIABLE, DownloadPlaces
from text_generation_server.settings import DEMO_MODEL_ID

logger = logging.getLogger(__name__)

SOURCES = ("huggingface", "modelscope")
_PACKAGE = "text_generation_server.download"


def download_weights(
    model_id: str | None,
    *,
    revision: str | None = None,
    source: str = "huggingface",
    trust_remote_code: bool = False,
    extension: str = ".safetensors",
    auto_convert: bool = True,
    places: DownloadPlaces | None = None,
) -> Path:
    """Make a model's files present, once, and return their folder.

    Args:
        model_id: a folder, a GGUF file, or an id of `source`; None or "demo" for the demo model.
        revision: branch, tag or commit; of hub models only.
        trust_remote_code: fetch the repository's Python files, and let a tokenizer conversion run them.
        extension: kind of weight files that is looked for first.
        auto_convert: take .bin files if there are no .safetensors; they are read as they are.
        places: None: what the environment says.
    Raises:
        DownloadError: the one line to show.
    """
    places = places or DownloadPlaces.from_environment()
    if model_id is None or (model_id == DEMO_MODEL_ID and not Path(model_id).exists()):
        return demo_model_folder(places)
    path = Path(model_id).expanduser().absolute()
    if path.is_file():
        return _from_file(path, places)
    wanted = Wanted(extension, auto_convert, trust_remote_code, with_weights=places.weights_override is None)
    if path.is_dir():
        gguf = _only_gguf(path)
        if gguf is not None:
            return _convert_gguf(gguf, places.cache)
        check_folder(path, wanted)
        logger.info("Files are already present on the host. Skipping download.")
        folder = path
    else:
        folder = _from_hub(model_id, revision, source, wanted, places)
    if places.weights_override is not None:
        folder = _with_weights_of(places.weights_override, folder, replace(wanted, with_weights=True), places)
    return _with_tokenizer(folder, trust_remote_code, places)


def local_folder(
    model_id: str | None,
    *,
    revision: str | None = None,
    source: str = "huggingface",
    places: DownloadPlaces | None = None,
) -> Path:
    """The folder that `download_weights` made, found again without any connection.

    Raises:
        DownloadError: it was not made yet.
    """
    places = replace(places or DownloadPlaces.from_environment(), offline=True)
    return download_weights(model_id, revision=revision, source=source, places=places)


def result_line(folder: Path) -> str:
    """The last line that `download-weights` prints to standard output, for the program that started it."""
    return json.dumps({"model_folder": str(folder)})


def _from_file(path: Path, places: DownloadPlaces) -> Path:
    if path.suffix != ".gguf":
        raise DownloadError(f"{path} is a file: use --model-id with the folder that it lies in, or with a .gguf file")
    return _convert_gguf(path, places.cache)


def _convert_gguf(path: Path, cache: Path) -> Path:
    convert: Callable[[Path, Path], Path] = importlib.import_module(f"{_PACKAGE}.gguf_conversion").convert_gguf
    return convert(path, cache)


def _only_gguf(folder: Path) -> Path | None:
    """A folder in which nothing but one GGUF could be meant."""
    ggufs = list(folder.glob("*.gguf"))
    return ggufs[0] if len(ggufs) == 1 and not (folder / "config.json").exists() else None


def _from_hub(model_id: str, revision: str | None, source: str, wanted: Wanted, places: DownloadPlaces) -> Path:
    if model_id.startswith(("/", ".", "~")) or model_id.count("/") > 1 or model_id.endswith(".gguf"):
        raise DownloadError(f"{model_id} does not exist: check the path given as --model-id")
    if source not in SOURCES:
        raise DownloadError(f"--model-source {source} is not known; use {' or '.join(SOURCES)}")
    fetch: Callable[[str, str | None, Wanted, DownloadPlaces], Path] = (
        importlib.import_module(f"{_PACKAGE}.modelscope").modelscope_folder
        if source == "modelscope"
        else importlib.import_module(f"{_PACKAGE}.hub").hub_folder
    )
    return fetch(model_id, revision, wanted, places)


def _with_weights_of(override: Path, folder: Path, wanted: Wanted, places: DownloadPlaces) -> Path:
    """The override's files, completed by the rest of the model's."""
    if not override.is_dir():
        raise DownloadError(f"WEIGHTS_CACHE_OVERRIDE is {override}, which is no folder")
    sources = (override, folder)
    target = places.cache / "linked" / f"{override.name}-{folder_key(sources)}"
    made = make_once(target, lambda partial: link_files(partial, sources))
    check_folder(made, wanted)
    return made


def _with_tokenizer(folder: Path, trust_remote_code: bool, places: DownloadPlaces) -> Path:
    """The folder itself if it has a tokenizer.json, else one of links in the cache, with the converted tokenizer."""
    if (folder / "tokenizer.json").is_file():
        return folder
    if not has_tokenizer([file.name for file in folder.iterdir()]):
        raise DownloadError(
            f"{folder} has no tokenizer: tokenizer.json, tokenizer.model, or vocab.json with merges.txt is needed"
        )

    def build(partial: Path) -> None:
        conversion = importlib.import_module(f"{_PACKAGE}.tokenizer_conversion")
        conversion.convert_tokenizer(folder, partial, trust_remote_code)
        link_files(partial, [folder])

    target = places.cache / "tokenizers" / f"{folder.name}-{folder_key([folder])}"
    logger.info("Converting the tokenizer of %s (kept in %s; %s moves it)", folder, target, CACHE_VARIABLE)
    return make_once(target, build)
