"""langchain-community's HuggingFaceTextGenInference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driver import serve
from langchain_community.llms import HuggingFaceTextGenInference
from langchain_texts import text_operations


def batch(url: str, prompts: Sequence[str], **parameters: Any) -> list[str]:
    texts: list[str] = _llm(url, **parameters).batch(list(prompts))
    return texts


def _llm(url: str, key: str | None = None, **parameters: Any) -> Any:
    headers = {} if key is None else {"headers": {"Authorization": f"Bearer {key}"}}
    return HuggingFaceTextGenInference(inference_server_url=url, server_kwargs=headers, **parameters)


if __name__ == "__main__":
    serve(*text_operations(_llm), batch)
