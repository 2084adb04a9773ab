"""llama.cpp's own HTTP server, out of the wheel of xllamacpp; arguments: GGUF file, port, threads, streams, tokens.

Runs in an environment of its own, until it is stopped.
"""

from __future__ import annotations

import signal
import sys

import xllamacpp


def main() -> None:
    path, port, threads, streams, tokens = sys.argv[1:]
    settings = xllamacpp.CommonParams()
    settings.model.path = path
    settings.port = int(port)
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = int(threads)
    settings.n_parallel = int(streams)
    settings.n_ctx = int(tokens)
    settings.kv_unified = True  # one prompt may be longer than its share
    server = xllamacpp.Server(settings)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
