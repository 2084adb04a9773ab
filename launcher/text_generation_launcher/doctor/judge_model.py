"""Findings about the model: whether its weights, one longest request and the limits fit this device, in numbers."""

from __future__ import annotations

from collections.abc import Iterator

from text_generation_launcher.doctor.facts import Facts
from text_generation_launcher.doctor.findings import Finding, error, note, ok, warning
from text_generation_launcher.doctor.sizing import GIB, Sizes, estimate, served_dtype
from text_generation_launcher.doctor.target import Asked, Target
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
    sizes = estimate(
        model, asked.serve, target.kind, num_shards=target.num_shards, memory=memory, environ=facts.variables
    )
    yield from _fit(facts, target, asked, sizes, memory)


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


def _fit(facts: Facts, target: Target, asked: Asked, sizes: Sizes, memory: tuple[int, int]) -> Iterator[Finding]:
    model, place = facts.model, "card" if target.is_npu else "host"
    share = f" of {target.num_shards} shards" if target.num_shards > 1 else ""
    weights = f"weights{share} in {served_dtype(model, asked.serve, target.kind)} take {_gib(sizes.weight_bytes)} each"
    weights = weights if share else weights.removesuffix(" each")
    have = f"the {place} has {_gib(memory[1])}, {_gib(memory[0])} of it free"
    if sizes.cap_bytes < memory[1]:
        have += f", and {_gib(sizes.cap_bytes)} may be used"
    more = (
        "use more shards (--num-shard) or a smaller model"
        if target.is_npu
        else "use --quantize w8a16 or a smaller model"
    )
    if sizes.weight_bytes >= sizes.cap_bytes:
        yield error("weights", f"{weights}, and {have}", more, f"below {_gib(sizes.cap_bytes)}")
        return
    tokens, wanted = sizes.cache_tokens, asked.router.max_total_tokens
    cache = f"at most {tokens:,} tokens of {sizes.token_bytes:,} bytes fit in the cache"
    if tokens == 0:
        yield error("cache", f"{weights}, {have}: no memory is left for a cache", f"free memory, or {more}")
    elif wanted is not None and wanted > tokens:
        seen = f"--max-total-tokens {wanted} does not fit: {weights}, {have}, {cache}"
        yield error("cache", seen, f"lower it to {tokens} or less, or {more}", f"up to {tokens}")
    elif (asked.router.max_batch_total_tokens or 0) > tokens:
        given = f"--max-batch-total-tokens {asked.router.max_batch_total_tokens}"
        seen = f"{given} is more than fits: {weights}, {have}, {cache}"
        yield warning("cache", seen, f"lower it to {tokens} or less; the cache gets what fits")
    elif wanted is None and tokens < model.max_positions:
        seen = (
            f"{weights}, {have}, {cache}: requests are limited to that, and the model could do {model.max_positions:,}"
        )
        yield note("cache", seen)
    else:
        yield ok("cache", f"{weights}, {have}, {cache}")


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"
