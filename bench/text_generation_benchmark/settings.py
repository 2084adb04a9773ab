"""What the benchmark can be told: every option of `text-generation-benchmark`, declared once."""

from __future__ import annotations

from dataclasses import dataclass

from text_generation_cli.options import option


@dataclass(frozen=True)
class BenchmarkSettings:
    """Options of `text-generation-benchmark`. Names, letters and defaults are TGI's; tokens are the unit of lengths."""

    # What is run
    tokenizer_name: str | None = option(
        default=None,
        short="t",
        help="hub id or local folder of the model whose tokenizer makes the prompts; unset: the shard's own model",
    )
    revision: str = option(default="main", help="branch, tag or commit of the tokenizer on its hub")
    batch_size: tuple[int, ...] = option(
        default=(1, 2, 4, 8, 16, 32),
        short="b",
        minimum=1,
        reads_environment=False,
        help="sequences that run together; repeatable, or a comma list",
    )
    sequence_length: int = option(default=10, short="s", minimum=1, help="tokens of each prompt")
    decode_length: int = option(
        default=8, short="d", minimum=2, help="tokens generated for each prompt; the first is the prefill's"
    )
    runs: int = option(default=10, short="r", minimum=1, help="measured runs of each batch size")
    warmups: int = option(
        default=1, short="w", minimum=0, help="runs of each batch size before those that are measured"
    )
    pipeline_depth: int = option(
        default=2,
        minimum=1,
        maximum=2,
        help="decode steps sent before the first is answered; 2 as the router does, 1 waits for each",
    )

    # How the next token is chosen
    temperature: float | None = option(default=None, minimum=0, help="divides the logits; unset: greedy")
    top_k: int | None = option(default=None, minimum=1, maximum=2**31 - 1, help="sample from the k most likely tokens")
    top_p: float | None = option(
        default=None,
        minimum=0,
        maximum=1,
        help="sample from the most likely tokens that have this probability together",
    )
    typical_p: float | None = option(
        default=None,
        minimum=0,
        maximum=1,
        help="sample from the most typical tokens that have this probability together",
    )
    repetition_penalty: float | None = option(default=None, minimum=0, help="penalty of tokens seen before; 1 is none")
    frequency_penalty: float | None = option(
        default=None, minimum=-2, maximum=2, help="penalty of tokens by how often they were seen; 0 is none"
    )
    watermark: bool = option(default=False, help="watermark the text")
    do_sample: bool = option(default=False, help="sample instead of taking the most likely token")
    top_n_tokens: int | None = option(
        default=None, minimum=0, maximum=2**31 - 1, help="most likely tokens that are reported at each position"
    )

    # The shard, and what is shown
    master_shard_uds_path: str = option(
        default="/tmp/text-generation-server-0", short="m", help="socket of the shard with rank 0"
    )
    tui: bool = option(
        default=True,
        reads_environment=False,
        help="show tables and charts while measuring; --no-tui, or no terminal: progress lines",
    )
    output_json: str | None = option(default=None, help="file to write every run and the tables to, as JSON")

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Each once, in the order given."""
        return tuple(dict.fromkeys(self.batch_size))
