"""What the environment says about where weights come from and are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from text_generation_server.download import DownloadPlaces


@pytest.mark.parametrize(
    ("environ", "cache", "hub_cache"),
    [
        ({}, "/home/me/.cache/text-generation", "/home/me/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/text-generation", "/x/huggingface/hub"),
        ({"HF_HOME": "/data"}, "/data/text-generation", "/data/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "/data"}, "/data/text-generation", "/data"),
        ({"HUGGINGFACE_HUB_CACHE": "/a", "HF_HUB_CACHE": "/b", "HF_HOME": "/c"}, "/b/text-generation", "/b"),
        ({"TEXT_GENERATION_CACHE": "/t", "HF_HOME": "/data"}, "/t", "/data/hub"),
    ],
)
def test_caches_follow_the_variables_in_order(environ: dict[str, str], cache: str, hub_cache: str) -> None:
    places = DownloadPlaces.from_environment({"HOME": "/home/me", **environ})
    assert (places.cache, places.hub_cache) == (Path(cache), Path(hub_cache))


@pytest.mark.parametrize(
    ("environ", "field", "value"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "offline", True),
        ({"HF_HUB_OFFLINE": "true"}, "offline", True),
        ({"HF_HUB_OFFLINE": "0"}, "offline", False),
        ({"TRANSFORMERS_OFFLINE": "yes"}, "offline", True),
        ({"HF_TOKEN": "a", "HUGGING_FACE_HUB_TOKEN": "b"}, "hub_token", "a"),
        ({"HUGGING_FACE_HUB_TOKEN": "b"}, "hub_token", "b"),
        ({"HF_ENDPOINT": "https://mirror"}, "hub_endpoint", "https://mirror"),
        ({"MODELSCOPE_DOMAIN": "hub.example/"}, "modelscope_endpoint", "https://hub.example"),
        ({"MODELSCOPE_DOMAIN": "http://127.0.0.1:1"}, "modelscope_endpoint", "http://127.0.0.1:1"),
        ({"MODELSCOPE_ENDPOINT": "https://a", "MODELSCOPE_DOMAIN": "b"}, "modelscope_endpoint", "https://a"),
        ({"WEIGHTS_CACHE_OVERRIDE": "/w"}, "weights_override", Path("/w")),
    ],
)
def test_variable_sets_its_field(environ: dict[str, str], field: str, value: object) -> None:
    assert getattr(DownloadPlaces.from_environment({"HOME": "/home/me", **environ}), field) == value
