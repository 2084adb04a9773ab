"""The load generator: a process that opens streams on a server all at once and writes down when tokens arrive.

It reads one JSON order from stdin and prints one `Run`. Plain sockets and no parsing of events while tokens arrive,
because it shares the machine with the server that it measures.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from urllib.parse import urlsplit

from benchmarks.rates import Run

_EVENT_END = b"\n\n"


class LoadError(Exception):
    """The server did not answer as a stream of tokens."""


async def generate_stream(url: str, prompt: str, max_new_tokens: int) -> tuple[float, list[float]]:
    """One greedy request to /generate_stream.

    Returns: when it was sent, and when each token arrived, in seconds of `time.perf_counter`.
    Raises: LoadError with the server's own words.
    """
    address = urlsplit(url)
    body = json.dumps({"inputs": prompt, "parameters": {"max_new_tokens": max_new_tokens}}).encode()
    reader, writer = await asyncio.open_connection(address.hostname, address.port or 80)
    try:
        sent_s = time.perf_counter()
        head = (
            f"POST {address.path.rstrip('/')}/generate_stream HTTP/1.1\r\nHost: {address.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.split(b"\r\n", 1)[0]:
            raise LoadError((answer + await reader.read()).decode(errors="replace"))
        arrivals_s: list[float] = []
        text = b""
        events: list[bytes] = []
        while size := int(await reader.readuntil(b"\r\n"), 16):
            text += (await reader.readexactly(size + 2))[:-2]
            *whole, text = text.split(_EVENT_END)
            arrivals_s += [time.perf_counter()] * len(whole)
            events += whole
    finally:
        writer.close()
    last = json.loads(events[-1].removeprefix(b"data:")) if events else {}
    if last.get("generated_text") is None:
        raise LoadError(f"the stream ended with {last or 'nothing'}")
    return sent_s, arrivals_s


async def run(url: str, prompts: list[str], max_new_tokens: int) -> Run:
    """All prompts at once, each as a stream of its own."""
    streams = await asyncio.gather(*(generate_stream(url, prompt, max_new_tokens) for prompt in prompts))
    return Run([sent_s for sent_s, _ in streams], [arrivals_s for _, arrivals_s in streams])


def main() -> None:
    order = json.load(sys.stdin)
    try:
        print(asyncio.run(run(order["url"], order["prompts"], order["max_new_tokens"])).to_json())
    except (LoadError, OSError, asyncio.IncompleteReadError) as error:
        sys.exit(f"{order['url']}: {error}")


if __name__ == "__main__":
    main()
