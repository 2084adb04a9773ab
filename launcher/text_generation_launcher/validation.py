"""Which options cannot work together, found before anything is loaded. The texts are TGI's, which scripts look for."""

from __future__ import annotations

from pathlib import Path

from text_generation_launcher.errors import invalid
from text_generation_launcher.settings import LauncherSettings
from text_generation_router.settings import RouterSettings
from text_generation_server.settings import ServeSettings


def check_options(launcher: LauncherSettings, router: RouterSettings, serve: ServeSettings) -> None:
    """Raise LauncherError for the first combination that is not allowed."""
    _check_limits(launcher, router)
    if router.validation_workers == 0:
        raise invalid("`validation_workers` must be > 0")
    if router.max_batch_size == 0:
        raise invalid("`max_batch_size` must be > 0")
    if launcher.num_shard is not None:
        if launcher.sharded and launcher.num_shard <= 1:
            raise invalid("`sharded` is true but `num_shard` <= 1")
        if launcher.num_shard < 1:
            raise invalid("`num_shard` cannot be < 1")
    _check_weights(serve)
    _check_tunnel(router)


def check_shards(num_shards: int, serve: ServeSettings) -> None:
    """Raise LauncherError if this many shards cannot serve these weights."""
    if num_shards > 1 and serve.quantize == "exl2":
        raise invalid("Sharding is currently not supported with `exl2` quantization")


def check_model_path(model_id: str) -> None:
    """Raise LauncherError if `model_id` can only be a local path and nothing is there.

    What a folder lacks is said by the download step, which knows every kind of folder.
    """
    path = Path(model_id).expanduser()
    if not path.exists():
        if model_id.startswith(("/", "./", "../", "~")) or model_id.endswith(".gguf"):
            raise invalid(f"{model_id} does not exist; give --model-id a folder, a .gguf file or a hub id")
    elif path.is_file() and path.suffix != ".gguf":
        raise invalid(f"{model_id} is a file; give --model-id a folder, a .gguf file or a hub id")


def _check_limits(launcher: LauncherSettings, router: RouterSettings) -> None:
    if launcher.max_input_tokens is not None and launcher.max_input_length is not None:
        raise invalid(
            f"Both `max_input_tokens` ({launcher.max_input_tokens}) and `max_input_length` "
            f"({launcher.max_input_length}) are set. "
            "Please define only `max_input_tokens`; the other is its older name."
        )
    max_input = launcher.given_max_input_tokens
    max_total, prefill = router.max_total_tokens, router.max_batch_prefill_tokens
    max_batch_total = router.max_batch_total_tokens
    if max_input is not None and max_total is not None and max_input >= max_total:
        raise invalid(f"`max_input_tokens`({max_input}) must be < `max_total_tokens`({max_total})")
    if max_input is not None and max_input < 1:
        raise invalid("`max_input_tokens` must be > 0")
    if max_input is not None and prefill is not None and prefill < max_input and not router.prefill_chunking:
        raise invalid(f"`max_batch_prefill_tokens` must be >= `max_input_length`. Given: {prefill} and {max_input}")
    if max_batch_total is None:
        return
    if max_total is not None and max_total > max_batch_total:
        raise invalid(
            f"`max_total_tokens` must be <= `max_batch_total_tokens`. Given: {max_total} and {max_batch_total}"
        )
    if prefill is not None and prefill > max_batch_total:
        raise invalid(
            f"`max_batch_prefill_tokens` must be <= `max_batch_total_tokens`. Given: {prefill} and {max_batch_total}"
        )


def _check_weights(serve: ServeSettings) -> None:
    if serve.dtype and serve.quantize and not serve.quantize.startswith("bitsandbytes"):
        raise invalid(
            "Only 1 can be set between `dtype` and `quantize`, as both decide what the weights are. "
            f"Given: {serve.dtype} and {serve.quantize}"
        )
    for adapter in serve.lora_adapters:
        if adapter.count("@") > 1:
            raise invalid(f"Invalid LoRA adapter format: {adapter}")


def _check_tunnel(router: RouterSettings) -> None:
    if not router.ngrok:
        return
    if router.ngrok_authtoken is None:
        raise invalid("`ngrok-authtoken` must be set when using ngrok tunneling")
    if router.ngrok_edge is None:
        raise invalid("`ngrok-edge` must be set when using ngrok tunneling")
    raise invalid("`ngrok` tunneling is not supported; run a tunnel of your own in front of --port")
