"""What the router can be told: every option of `text-generation-router`, declared once.

The launcher builds its own command line from this class too, so the module imports nothing but the declarations.
"""

from __future__ import annotations

from dataclasses import dataclass

from text_generation_cli.options import option

# Why TGI's options about interrupting a batch change nothing here.
STEPS_ARE_SHARED = "prompts and running sequences share each step, within --max-batch-prefill-tokens"


@dataclass(frozen=True)
class RouterSettings:
    """Options of `text-generation-router`. Tokens are the unit where a name gives none."""

    # The model
    tokenizer_name: str | None = option(
        default=None, internal=True, help="hub id or local folder of the model whose tokenizer is used"
    )
    model_folder: str | None = option(
        default=None, internal=True, help="local folder with the model's tokenizer.json, found by the download step"
    )
    model_id: str | None = option(default=None, help="name of the model that /info shows; unset: --tokenizer-name")
    revision: str | None = option(default=None, help="branch, tag or commit of the model on its hub")
    tokenizer_config_path: str | None = option(
        default=None,
        help="tokenizer_config.json, or .jinja file, whose chat template goes before those in the model's folder",
    )
    trust_remote_code: bool = option(default=False, help="allow code from the model's repository")

    # Limits of one request
    max_best_of: int = option(default=2, minimum=0, help="largest best_of")
    max_stop_sequences: int = option(default=4, minimum=0, help="most stop strings")
    max_top_n_tokens: int = option(default=5, minimum=0, help="largest top_n_tokens")
    max_input_tokens: int | None = option(
        default=None,
        minimum=1,
        aliases=("max_input_length",),
        help="longest prompt; unset: one less than --max-total-tokens",
    )
    max_total_tokens: int | None = option(
        default=None, minimum=1, help="longest prompt with its answer; unset: what the model and the memory allow"
    )
    max_client_batch_size: int = option(default=4, minimum=0, help="most prompts in one /v1/completions")
    payload_limit: int = option(default=2_000_000, minimum=0, help="largest request body, in bytes")
    max_image_fetch_size: int = option(
        default=1 << 30, minimum=0, help="largest image fetched, in bytes", no_effect="images are not served"
    )
    disable_grammar_support: bool = option(default=False, help="refuse grammars")

    # The batch
    max_concurrent_requests: int = option(
        default=128, minimum=1, help="requests held at once; one more is answered with status 429"
    )
    max_batch_prefill_tokens: int | None = option(
        default=None, minimum=1, help="token budget of one step; unset: measured at warm-up"
    )
    max_batch_total_tokens: int | None = option(
        default=None, minimum=1, help="upper bound of the key/value cache; unset: what fits into memory"
    )
    max_batch_size: int | None = option(
        default=None, minimum=0, help="most sequences in a batch; unset: --max-concurrent-requests"
    )
    waiting_served_ratio: float = option(
        default=1.2,
        minimum=0,
        help="how large the waiting group must be, relative to the running batch, to interrupt it",
        no_effect=STEPS_ARE_SHARED,
    )
    max_waiting_tokens: int = option(
        default=20,
        minimum=0,
        help="steps after which a waiting request is taken in regardless of the ratio",
        no_effect=STEPS_ARE_SHARED,
    )
    pipeline_depth: int = option(
        default=2, minimum=1, maximum=2, help="steps sent to the shards before the first is answered"
    )
    prefix_caching: bool = option(default=True, help="reuse the key/value cache of prompts that begin alike")
    prefill_chunking: bool = option(
        default=True,
        help="split long prompts over several steps",
        no_effect="a prompt is always split where it does not fit a step's token budget",
    )
    validation_workers: int = option(default=2, minimum=0, help="threads that tokenize prompts")

    # HTTP
    hostname: str = option(default="0.0.0.0", address=True, help="address to listen on")
    port: int = option(default=3000, minimum=0, maximum=65535, short="p", help="HTTP port; 0: any free one")
    prometheus_port: int = option(
        default=9000,
        minimum=0,
        maximum=65535,
        help="port of the metrics in TGI",
        no_effect="metrics are served at /metrics on --port",
    )
    cors_allow_origin: tuple[str, ...] = option(default=(), help="allowed origins, repeatable; none: any")
    api_key: str | None = option(default=None, secret=True, help="bearer token that clients must send")
    compat: str = option(
        default="default",
        choices=("default", "v3", "0.9"),
        variables=("TGI_COMPAT",),
        help="generation of TGI whose answers to imitate where the generations differ",
    )
    enable_prefill_logprobs: bool = option(
        default=False,
        aliases=("request_logprobs",),
        help="fill `prefill` for requests that ask for it under --compat v3 too; otherwise it always is",
    )
    compute_type: str | None = option(
        default=None, help="value of the header x-compute-type; unset: number and name of the devices"
    )
    request_timeout_s: float | None = option(
        default=None, minimum=0.001, help="longest a request may take, in seconds; then it ends with status 504"
    )
    queue_timeout_s: float | None = option(
        default=None, minimum=0.001, help="longest a request may be queued, in seconds; then it ends with status 429"
    )
    ngrok: bool = option(default=False, help="open a tunnel; not supported")
    ngrok_authtoken: str | None = option(default=None, secret=True, help="token of the tunnel; not supported")
    ngrok_edge: str | None = option(default=None, help="edge of the tunnel; not supported")
    usage_stats: str = option(
        default="on",
        choices=("on", "off", "no-stack"),
        help="usage statistics in TGI",
        no_effect="nothing is ever sent",
    )

    # Shards and logs
    master_shard_uds_path: str = option(
        default="/tmp/text-generation-server-0", internal=True, help="socket of the shard with rank 0"
    )
    json_output: bool = option(default=False, help="write log lines as JSON")
    log_prompts: bool = option(
        default=False, help="write prompts and answers to the log; without it no text is ever logged"
    )
    otlp_endpoint: str | None = option(
        default=None, help="OpenTelemetry collector that traces are sent to by gRPC, e.g. http://localhost:4317"
    )
    otlp_service_name: str = option(default="text-generation-inference.router", help="name in traces")

    @property
    def folder(self) -> str | None:
        """The local folder of the model, if it is known."""
        return self.model_folder or self.tokenizer_name

    @property
    def shown_model_id(self) -> str:
        """The name of the model for /info and logs."""
        return self.model_id or self.tokenizer_name or self.model_folder or ""
