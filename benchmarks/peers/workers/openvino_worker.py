"""OpenVINO GenAI's continuous batching on a GGUF file; arguments: file, threads, precision ("": its own).

Its wheel holds no HTTP server. Runs in an environment of its own. Answers each JSON order on stdin with one `Run`.
"""

from __future__ import annotations

import json
import sys
import time

import numpy
import openvino
import openvino_genai

from benchmarks.rates import Run


def main() -> None:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 1  # GB
    scheduler.max_num_seqs = 64
    properties: dict[str, object] = {"INFERENCE_NUM_THREADS": int(sys.argv[2])}
    if sys.argv[3]:
        properties["INFERENCE_PRECISION_HINT"] = sys.argv[3]
    pipeline = openvino_genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", properties)
    print("> ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        generation = openvino_genai.GenerationConfig()
        generation.max_new_tokens = order["max_new_tokens"]
        generation.ignore_eos = True
        generation.do_sample = False
        sent_s = time.perf_counter()
        handles = [
            pipeline.add_request(index, openvino.Tensor(numpy.array([ids], dtype=numpy.int64)), generation)
            for index, ids in enumerate(order["prompt_ids"])
        ]
        arrivals_s: list[list[float]] = [[] for _ in handles]
        token_ids: list[list[int]] = [[] for _ in handles]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            now_s = time.perf_counter()
            for index, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        token_ids[index] += output.generated_ids
                        arrivals_s[index] += [now_s] * len(output.generated_ids)
        run = Run([sent_s] * len(handles), arrivals_s, token_ids=token_ids)
        print(f"> {run.to_json()}", flush=True)


if __name__ == "__main__":
    main()
