"""What `text-generation-server selfcheck` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from text_generation_cli.options import option


@dataclass(frozen=True)
class SelfCheckSettings:
    """Options of `selfcheck`: of those of `serve`, the ones that decide what is computed."""

    model_id: str | None = option(
        default=None,
        positional=True,
        internal=True,
        help="local folder of a model, or 'demo'; unset: the shapes of a common model, without weights",
    )
    device: str = option(
        default="auto",
        choices=("auto", "cpu", "npu"),
        help="device to check; auto: the NPU if torch_npu is installed",
    )
    dtype: str | None = option(
        default=None, choices=("float16", "bfloat16", "float32"), help="type of the weights; unset: as `serve` has it"
    )
    weight_layout: str = option(
        default="auto", choices=("auto", "nd", "nz"), npu_only=True, help="layout of weights in the NPU's memory"
    )
    block_size: int | None = option(
        default=None, minimum=1, help="tokens in one block of the key/value cache; unset: the device's best"
    )
    rank: int = option(default=0, minimum=0, internal=True, help="which of the visible cards")
    json: bool = option(default=False, reads_environment=False, help="print what was found as JSON")
