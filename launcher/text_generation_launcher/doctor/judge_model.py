"""Findings about the model: whether its weights, one longest request and the limits fit this device, in numbers."""

from __future__ import annotations

from collections.abc import Iterator

from text_generation_launcher.doctor.facts import Facts
from text_generation_launcher.doctor.findings import Finding, error, note, ok, warning
from text_generation_launcher.doctor.sizing import Sizes, estimate, served_dtype
from text_generation_launcher.doctor.target import Asked, Target
from text_generation_server.memory_budget import GIB
from text_generation_server.sharding import ShardingError, split_heads


def judge_model(facts: Facts, target: Target, asked: Asked) -> Iterator[Finding]:
    model = facts.model
    if model.problem:
        remedy = "give --model-id a folder to compare weights and cache with the memory" if model.folder is None else ""
        yield note("model", model.problem, remedy)
        return
    try:
        split_heads(model.num_heads, model.num_kv_heads, 0, target.num_shards)
    except ShardingError as refusal:
        yield error("shards", str(refusal), "")
        return
    limit = asked.router.max_total_tokens
    if limit is not None and model.max_positions and limit > model.max_positions and not _may_scale(facts, asked):
        seen = f"--max-total-tokens {limit} is more than the model's {model.max_positions} positions"
        remedy = f"lower it to {model.max_positions} or less"
        yield error("positions", seen, remedy, f"up to {model.max_positions}")
    memory = device_memory(facts, target)
    if memory is None:
        yield note("memory", "the memory of the cards is not known, so nothing was compared with it")
        return
    yield from _memory_options(asked, memory)
    yield from _fit(facts, target, asked, memory)


def device_memory(facts: Facts, target: Target) -> tuple[int, int] | None:
    """(free, total) bytes of the smallest device that is used; None if nobody says."""
    if not target.is_npu:
        machine = facts.machine
        return (machine.free_bytes, machine.total_bytes) if machine.total_bytes else None
    if facts.imports.memory:
        used = facts.imports.memory[: target.num_shards]
        return min(free for free, _ in used), min(total for _, total in used)
    visible = target.devices.visible if target.devices and target.devices.variable else None
    chips = [chip for chip in facts.smi.chips if chip.total_mb and (visible is None or chip.logic_id in visible)]
    if not chips:
        return None
    mib = 2**20
    return min(chip.total_mb - chip.used_mb for chip in chips) * mib, min(chip.total_mb for chip in chips) * mib


def _may_scale(facts: Facts, asked: Asked) -> bool:
    return facts.model.scales_positions or asked.serve.rope_scaling is not None or asked.serve.rope_factor is not None


def _memory_options(asked: Asked, memory: tuple[int, int]) -> Iterator[Finding]:
    wanted = asked.serve.max_memory_gb
    if wanted is not None and wanted * GIB > memory[1]:
        seen = f"MAX_MEMORY_GB is {wanted:g}, and the device has {_gib(memory[1])}"
        yield warning("memory-options", seen, "lower it: what the device has is counted instead")


def _fit(facts: Facts, target: Target, asked: Asked, memory: tuple[int, int]) -> Iterator[Finding]:
    """What does not fit an empty device is told from what does not fit beside others, who may be about to leave."""

    def sizes_with(free_bytes: int) -> Sizes:
        return estimate(
            facts.model,
            asked.serve,
            target.kind,
            num_shards=target.num_shards,
            memory=(free_bytes, memory[1]),
            environ=facts.variables,
        )

    sizes, alone = sizes_with(memory[0]), sizes_with(memory[1])
    weights, have = _weights(facts, target, asked, sizes), _have(target, sizes, memory)
    smaller = (
        "use more shards (--num-shard) or a smaller model"
        if target.is_npu
        else "use --quantize w8a16 or a smaller model"
    )
    if sizes.cap_bytes < memory[1]:
        smaller = f"raise MAX_MEMORY_GB or --cuda-memory-fraction, or {smaller}"
    if sizes.weight_bytes >= sizes.cap_bytes:
        yield error("weights", f"{weights}, and {have}", smaller, f"below {_gib(sizes.cap_bytes)}")
        return
    limit, batch = asked.router.max_total_tokens, asked.router.max_batch_total_tokens or 0
    tokens, most, wanted = sizes.cache_tokens, alone.cache_tokens, limit or 1
    what = f"--max-total-tokens {limit} does not fit" if limit else "no cache fits"
    if wanted > most:
        seen = f"{what}: {weights}, {have}, {_cache(alone)}"
        lower = f"lower it to {most} or less, or " if limit and most else ""
        yield error("cache", seen, f"{lower}{smaller}", f"up to {most}")
    elif wanted > tokens:
        seen = f"{what} into what is free now: {weights}, {have}, {_cache(sizes)}"
        yield error("free-memory", seen, f"end what else uses the memory: alone, {most:,} tokens would fit")
    elif batch > tokens:
        seen = f"--max-batch-total-tokens {batch} is more than fits: {weights}, {have}, {_cache(sizes)}"
        yield warning("cache", seen, f"lower it to {tokens} or less; the cache gets what fits")
    elif limit is None and tokens < facts.model.max_positions:
        can = f"requests are limited to that, and the model could do {facts.model.max_positions:,}"
        yield note("cache", f"{weights}, {have}, {_cache(sizes)}: {can}")
    else:
        yield ok("cache", f"{weights}, {have}, {_cache(sizes)}")


def _weights(facts: Facts, target: Target, asked: Asked, sizes: Sizes) -> str:
    dtype, taken = served_dtype(facts.model, asked.serve, target.kind), _gib(sizes.weight_bytes)
    if target.num_shards == 1:
        return f"weights in {dtype} take {taken}"
    return f"weights of {target.num_shards} shards in {dtype} take {taken} each"


def _have(target: Target, sizes: Sizes, memory: tuple[int, int]) -> str:
    capped = f", and {_gib(sizes.cap_bytes)} may be used" if sizes.cap_bytes < memory[1] else ""
    return f"the {'card' if target.is_npu else 'host'} has {_gib(memory[1])}, {_gib(memory[0])} of it free{capped}"


def _cache(sizes: Sizes) -> str:
    return f"at most {sizes.cache_tokens:,} tokens of {sizes.token_bytes:,} bytes fit in the cache"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB / 10 else f"{num_bytes / GIB * 1024:.1f} MiB"
