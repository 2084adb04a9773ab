"""Where weights come from and where they are kept: everything the environment says about downloading.

The only module of this package that reads the environment, and only when asked to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CACHE_VARIABLE = "TEXT_GENERATION_CACHE"
# Part of the name of every folder that was converted from a GGUF: raise it when what is written changes, so that older
# folders are not used.
CONVERSION_VERSION = 1

_TRUE_WORDS = ("1", "ON", "YES", "TRUE")


@dataclass(frozen=True)
class DownloadPlaces:
    cache: Path  # folders that this package makes: converted GGUFs, converted tokenizers, ModelScope files
    hub_cache: Path  # huggingface_hub's own cache, read and written in its own layout
    offline: bool = False  # no connection may even be tried
    hub_endpoint: str | None = None  # None: the hub's own address
    hub_token: str | None = None  # None: the one that `hf auth login` stored, if any
    weights_override: Path | None = None  # take the weight files from this folder
    modelscope_endpoint: str = "https://modelscope.cn"
    modelscope_token: str | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> DownloadPlaces:
        """Read the variables that huggingface_hub, ModelScope and TGI document, in their order of precedence."""
        home = Path(environ.get("HOME") or Path.home())
        user_cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
        hub_home = _absolute(environ.get("HF_HOME") or user_cache / "huggingface")
        hub_cache = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
        token = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN") or environ.get("HF_API_TOKEN")
        override = environ.get("WEIGHTS_CACHE_OVERRIDE")
        domain = environ.get("MODELSCOPE_DOMAIN", "").strip().rstrip("/")
        endpoint = environ.get("MODELSCOPE_ENDPOINT", "").strip().rstrip("/") or domain
        if endpoint and "://" not in endpoint:
            endpoint = f"https://{endpoint}"
        return cls(
            cache=_own_cache(environ, user_cache, hub_cache),
            hub_cache=_absolute(hub_cache) if hub_cache else hub_home / "hub",
            offline=_is_true(environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE")),
            hub_endpoint=environ.get("HF_ENDPOINT") or None,
            hub_token=token or None,
            weights_override=_absolute(override) if override else None,
            modelscope_endpoint=endpoint or cls.modelscope_endpoint,
            modelscope_token=environ.get("MODELSCOPE_API_TOKEN") or None,
        )


def _own_cache(environ: Mapping[str, str], user_cache: Path, hub_cache: str | None) -> Path:
    """A cache that was moved (a volume in a container) takes our folders along."""
    if own := environ.get(CACHE_VARIABLE):
        return _absolute(own)
    return _absolute(hub_cache or environ.get("HF_HOME") or user_cache) / "text-generation"


def _absolute(path: str | Path) -> Path:
    """The folder as other processes can find it too, whatever they run in."""
    return Path(path).expanduser().absolute()


def _is_true(value: str | None) -> bool:
    return value is not None and value.upper() in _TRUE_WORDS
