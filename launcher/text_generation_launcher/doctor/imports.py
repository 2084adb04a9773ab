"""What the importing child reported, as facts."""

from __future__ import annotations

from text_generation_launcher.doctor.facts import ImportFacts
from text_generation_launcher.doctor.host import CommandResult


def import_facts(modules: tuple[str, ...], records: list[dict[str, object]], end: CommandResult) -> ImportFacts:
    """Facts of a child that was to import `modules`, from its stages and its end."""
    done = {str(record["stage"]): record for record in records if record.get("done")}
    last = records[-1] if records else {}
    failed = not last.get("done")
    count = done.get("devices", {}).get("num_devices")
    soc_id = done.get("chip", {}).get("soc_id")
    return ImportFacts(
        tried=modules,
        torch=_version(done, "torch"),
        torch_npu=_version(done, "torch_npu"),
        num_devices=count if isinstance(count, int) else None,
        soc_id=soc_id if isinstance(soc_id, int) else None,
        soc_name=str(done.get("chip", {}).get("soc_name", "")),
        memory=_memory(done.get("memory", {}).get("memory")),
        stage=str(last.get("stage", modules[0])) if failed else "",
        error=_error(last, end) if failed else "",
        timed_out=failed and bool(end.error),
    )


def _version(done: dict[str, dict[str, object]], module: str) -> str | None:
    return str(done[module].get("version", "")) if module in done else None


def _memory(value: object) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list):
        return ()
    return tuple((int(free), int(total)) for free, total in value)


def _error(last: dict[str, object], end: CommandResult) -> str:
    """The error that was caught, with what it came from; else how the process ended, with its last words."""
    if "error" in last:
        error, cause = str(last["error"]), str(last.get("cause", ""))
        return error if not cause or cause == error else f"{error} (from {cause})"
    if end.error:
        return end.error
    how = f"signal {-end.status}" if end.status < 0 else f"exit status {end.status}"
    words = end.stderr.splitlines()[-1].strip() if end.stderr else ""
    return f"the process ended with {how}" + (f": {words}" if words else "")
