"""What a shard and the download step can be told: every option of `text-generation-server`, declared once.

The launcher builds its own command line from these classes too, so the module imports nothing but the declarations.
"""

from __future__ import annotations

from dataclasses import dataclass

from text_generation_cli.options import option

# Stands for the packaged demo model wherever a model id is expected.
DEMO_MODEL_ID = "demo"

_LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "WARN", "ERROR", "CRITICAL")


@dataclass(frozen=True)
class ServeSettings:
    """Options of `text-generation-server serve`. Tokens are the unit where a name gives none."""

    # The model
    model_id: str = option(positional=True, internal=True, help="hub id or local folder of the model")
    model_folder: str | None = option(
        default=None, internal=True, help="local folder with the weights, found by the download step; unset: MODEL_ID"
    )
    revision: str | None = option(default=None, help="branch, tag or commit of the model on its hub")
    trust_remote_code: bool = option(default=False, help="allow code from the model's repository")
    quantize: str | None = option(
        default=None,
        choices=(
            "awq",
            "compressed-tensors",
            "eetq",
            "exl2",
            "gptq",
            "marlin",
            "bitsandbytes",
            "bitsandbytes-nf4",
            "bitsandbytes-fp4",
            "fp8",
            "w8a16",
        ),
        help="format of the weights, w8a16: int8, made at load; unset: what the model's config says",
    )
    dtype: str | None = option(
        default=None,
        choices=("float16", "bfloat16", "float32"),
        help="type of the weights; unset: as they are stored; on an NPU bfloat16 if it has that, else float16",
    )
    kv_cache_dtype: str | None = option(
        default=None,
        choices=("fp8_e4m3fn", "fp8_e5m2", "float32", "bfloat16"),
        help="type that keys and values are kept in; unset: bfloat16 on the CPU; float32 there also has AMX read "
        "activations exactly",
    )
    speculate: int | None = option(
        default=None,
        minimum=0,
        maximum=32,
        help="tokens to guess ahead, from where the text's last words came before; 0 or unset: none",
    )
    rope_scaling: str | None = option(
        default=None, choices=("linear", "dynamic"), by_environment=True, help="rope scaling; alone: with factor 1"
    )
    rope_factor: float | None = option(
        default=None, minimum=0, by_environment=True, help="factor of the rope scaling; alone: linear"
    )
    lora_adapters: tuple[str, ...] = option(
        default=(),
        by_environment=True,
        help="comma list of hub-id, hub-id@revision, name=path or name=path@revision",
        no_effect="adapters are not served yet",
    )

    # The device
    device: str = option(
        default="auto",
        choices=("auto", "cpu", "npu"),
        help="device to compute on; auto: the NPU if torch_npu is installed",
    )
    block_size: int | None = option(
        default=None, minimum=1, help="tokens in one block of the key/value cache; unset: the device's best"
    )
    kv_cache_policy: str = option(
        default="paged", choices=("paged",), help="how blocks of the key/value cache are given out"
    )
    weight_layout: str = option(
        default="auto", choices=("auto", "nd", "nz"), npu_only=True, help="layout of weights in the NPU's memory"
    )
    npu_need_nz: bool | None = option(
        default=None, npu_only=True, by_environment=True, help="older name: true is --weight-layout nz, false is nd"
    )
    skip_selfcheck: bool = option(
        default=False, npu_only=True, help="do not compare the device's ops with the reference at start"
    )
    kernels: str = option(
        default="auto",
        choices=("auto", "strict"),
        npu_only=True,
        help="strict: do not start if the self-check finds an op's first choice wrong; auto: use its next",
    )
    disable_custom_kernels: bool = option(
        default=False,
        by_environment=True,
        help="compute with plain torch ops",
    )
    use_flash_attention: bool = option(
        default=True,
        by_environment=True,
        aliases=("flash_attention",),
        help="compute without padding",
        no_effect="there is one attention, without padding",
    )
    cuda_graphs: tuple[int, ...] = option(
        default=(1, 2, 4, 8, 16, 32),
        minimum=0,
        by_environment=True,
        help="comma list of batch sizes to capture, on the CPU all; 0: none, steps run op by op",
    )
    bind_cpu: bool = option(
        default=True, by_environment=True, npu_only=True, help="bind each shard to the CPU cores beside its NPU"
    )
    cpu_binding_num: int | None = option(
        default=None,
        minimum=1,
        by_environment=True,
        npu_only=True,
        help="cores that each shard is bound to; unset: half of those beside its NPU, shared with the NPUs there",
    )
    cpu_cores: tuple[int, ...] = option(
        default=(), minimum=0, internal=True, help="cores that this shard runs on; unset: all"
    )

    # Memory and limits
    cuda_memory_fraction: float = option(
        default=1.0,
        minimum=0,
        maximum=1,
        by_environment=True,
        aliases=("npu_memory_fraction",),
        help="share of the device's memory to use",
    )
    max_memory_gb: float | None = option(
        default=None, minimum=0, by_environment=True, help="device memory to count on, in GiB; unset: all of it"
    )
    reserved_memory_gb: float | None = option(
        default=None, minimum=0, by_environment=True, help="device memory to leave free, in GiB; unset: a few percent"
    )
    max_input_tokens: int | None = option(default=None, minimum=1, help="longest prompt")
    max_total_tokens: int | None = option(
        default=None, minimum=1, by_environment=True, help="longest prompt with its answer"
    )
    max_batch_size: int | None = option(default=None, minimum=0, by_environment=True, help="most sequences in a batch")
    enable_prefill_logprobs: bool = option(
        default=False,
        by_environment=True,
        aliases=("request_logprobs",),
        help="fill `prefill` for requests that ask for it under --compat v3 too; otherwise it always is",
    )
    watermark_gamma: float | None = option(
        default=None, minimum=0, maximum=1, by_environment=True, help="share of green tokens; unset: 0.5"
    )
    watermark_delta: float | None = option(
        default=None, by_environment=True, help="what is added to the logits of green tokens; unset: 2.0"
    )

    # The group of shards
    sharded: bool = option(default=False, internal=True, help="this is one of several shards; needs RANK, WORLD_SIZE")
    rank: int = option(default=0, minimum=0, internal=True, by_environment=True, help="which of the shards this is")
    world_size: int = option(default=1, minimum=1, internal=True, by_environment=True, help="number of shards")
    master_addr: str = option(default="localhost", by_environment=True, help="host where the shards find each other")
    master_port: int = option(
        default=29500,
        minimum=1,
        maximum=65535,
        by_environment=True,
        help="port where the shards find each other",
    )
    pg_init_timeout: float | None = option(
        default=None, minimum=0, by_environment=True, help="seconds that shards wait for each other at start"
    )

    # Shards and logs
    uds_path: str = option(
        default="/tmp/text-generation-server", internal=True, help="prefix of the sockets: shard r listens on PREFIX-r"
    )
    logger_level: str = option(default="INFO", choices=_LOG_LEVELS, internal=True, help="least level that is logged")
    json_output: bool = option(default=False, help="write log lines as JSON")
    otlp_endpoint: str | None = option(
        default=None, help="OpenTelemetry collector", no_effect="traces are not sent yet"
    )
    otlp_service_name: str = option(
        default="text-generation-inference.server", help="name in traces", no_effect="traces are not sent yet"
    )

    @property
    def folder(self) -> str:
        """The local folder of the model."""
        return self.model_folder or self.model_id

    @property
    def socket_path(self) -> str:
        """Where this shard listens."""
        return f"{self.uds_path}-{self.rank}"


@dataclass(frozen=True)
class DownloadSettings:
    """Options of `text-generation-server download-weights`."""

    model_id: str = option(
        default=DEMO_MODEL_ID,
        positional=True,
        internal=True,
        help=f"hub id, local folder or .gguf file of the model; '{DEMO_MODEL_ID}': the packaged demo model",
    )
    revision: str | None = option(default=None, help="branch, tag or commit of the model on its hub")
    model_source: str = option(
        default="huggingface", choices=("huggingface", "modelscope"), help="hub that model ids belong to"
    )
    extension: str = option(default=".safetensors", internal=True, help="kind of weight files to look for")
    auto_convert: bool = option(default=True, internal=True, help="convert other weight files to safetensors")
    merge_lora: bool = option(
        default=False,
        internal=True,
        help="merge an adapter into its base model",
        no_effect="adapters are not served yet",
    )
    trust_remote_code: bool = option(default=False, help="allow code from the model's repository")
    huggingface_hub_cache: str | None = option(default=None, by_environment=True, help="cache folder of the hub")
    weights_cache_override: str | None = option(
        default=None, by_environment=True, help="folder to take weights from instead of the hub's cache"
    )
    logger_level: str = option(default="INFO", choices=_LOG_LEVELS, internal=True, help="least level that is logged")
    json_output: bool = option(default=False, help="write log lines as JSON")
