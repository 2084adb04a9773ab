"""Who is measured: our server in three precisions, and its peers; how each is installed and started.

Every contender gets the same prompts, the same number of threads, the same number of streams and room for the same
tokens. Knows nothing about what is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.environments import (
    CACHE,
    LLAMA_CPP,
    OPENVINO,
    VLLM,
    Environment,
    EnvironmentNotMade,
    environment_python,
)
from benchmarks.peers.gguf_files import FORMATS, gguf_file
from benchmarks.programs import Program, Server, Worker, free_port, launch, stopping
from benchmarks.streams import LoadError, Target

MAX_STREAMS = 64
# Of all sequences together: 32 streams of 130 + 128 tokens, and some.
CACHE_TOKENS = 20480

# Bits of a weight: a contender is compared with peers whose weights are no coarser.
BITS = {"float32": 32, "bf16": 16, "F16": 16, "int8": 8, "Q8_0": 8, "Q4_1": 4}

# What holds a contender to an instruction set: each library reads its own variable, and leaves those of others alone.
# AVX-512 is all of it, its products of bfloat16 included, but no AMX.
HELD_TO: Mapping[str, Mapping[str, str]] = {
    "avx2": {
        "TEXT_GENERATION_CPU_ISA": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "DNNL_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "avx512": {
        "TEXT_GENERATION_CPU_ISA": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
        "DNNL_MAX_CPU_ISA": "AVX512_CORE_BF16",
        "ATEN_CPU_CAPABILITY": "avx512",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
    },
}


@dataclass(frozen=True)
class Machine:
    """What every contender is given."""

    model: Path  # the demo model's folder
    endless: Path  # the same, its texts without an end
    num_threads: int
    isa: str | None
    sockets: Path  # a folder with a short name

    @property
    def environ(self) -> dict[str, str]:
        threads = str(self.num_threads)
        held = HELD_TO[self.isa] if self.isa else {}
        return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1", **held}


@dataclass(frozen=True)
class Contender:
    """One row of the table. `prepare` installs and converts; `start` starts, without waiting."""

    name: str
    weights: str  # of BITS
    via: str
    start: Callable[[Machine], Server | Worker]
    prepare: Callable[[Machine], None] = lambda machine: None
    is_ours: bool = False
    obeys_isa: bool = True  # whether all of it can be held to an instruction set

    @property
    def label(self) -> str:
        return f"{self.name} {self.weights}"

    @property
    def bits(self) -> int:
        return BITS[self.weights]


def _ours(weights: str, *options: str) -> Contender:
    def start(machine: Machine) -> Server:
        limits = ["--max-batch-total-tokens", str(CACHE_TOKENS), "--max-batch-size", str(MAX_STREAMS)]
        return launch(
            f"this server, {weights}",
            machine.endless,
            [*limits, *options],
            machine.environ,
            machine.sockets,
        )

    return Contender("this server", weights, "HTTP", start, is_ours=True)


def _transformers(weights: str, dtype: str) -> Contender:
    def start(machine: Machine) -> Worker:
        module = "benchmarks.peers.workers.transformers_worker"
        command = [sys.executable, "-m", module, str(machine.model), dtype]
        return Worker(Program(f"transformers, {weights}", command, machine.environ, pipes=True))

    return Contender("transformers", weights, "offline", start)


def _vllm(weights: str, dtype: str) -> Contender:
    def start(machine: Machine) -> Server:
        port, python = free_port(), environment_python(VLLM)
        command = [
            str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(machine.model),
            "--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype,
            "--max-model-len", "1024", "--max-num-seqs", str(MAX_STREAMS), "--no-enable-prefix-caching",
        ]  # fmt: skip
        environ = {
            **machine.environ,
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
            # It would keep one core for its own work, and compute on the rest.
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{machine.num_threads - 1}" if machine.num_threads > 1 else "0",
            # Its own advice; it is among its requirements, but nothing loads it.
            "LD_PRELOAD": str(python.parents[1] / "lib" / "libiomp5.so"),
            "VLLM_CACHE_ROOT": str(CACHE / "vllm-cache"),
            # 0.32.0 cannot load what it saved ("no attribute 'finalize_loading'") and compiles again; this cache works.
            "VLLM_USE_AOT_COMPILE": "0",
            "TORCHINDUCTOR_CACHE_DIR": str(CACHE / "vllm-cache" / "inductor"),
            "VLLM_NO_USAGE_STATS": "1",
        }
        target = Target(f"http://127.0.0.1:{port}", "openai", "model")
        return Server(Program(f"vLLM, {weights}", command, environ), target)

    def prepare(machine: Machine) -> None:
        """Its first start compiles for minutes, and leaves the result in the cache."""
        made_of = environment_python(VLLM).parents[1].name  # other requirements, another folder
        if machine.isa == "avx2" and weights == "bf16":
            raise EnvironmentNotMade(f"its bf16 kernels cannot be held to {machine.isa}: it ends while it starts")
        compiled = CACHE / "vllm-cache" / f"compiled-{made_of}-{weights}-{machine.isa}-{machine.num_threads}"
        if compiled.exists():
            return
        print(f"starting vLLM, {weights}, a first time", file=sys.stderr, flush=True)
        server = start(machine)
        with stopping(server.program):
            try:
                server.wait_ready()
            except LoadError as error:
                raise EnvironmentNotMade(str(error)) from error
        compiled.touch()

    return Contender("vLLM-CPU", weights, "HTTP", start, prepare, obeys_isa=False)


def _llama_cpp(form: str) -> Contender:
    def start(machine: Machine) -> Server:
        port = free_port()
        module = "benchmarks.peers.workers.llama_cpp_server"
        arguments = [gguf_file(machine.model, form), port, machine.num_threads, 32, CACHE_TOKENS]
        command = [str(environment_python(LLAMA_CPP)), "-m", module, *map(str, arguments)]
        program = Program(f"llama.cpp, {form}", command, machine.environ)
        return Server(program, Target(f"http://127.0.0.1:{port}", "openai", "model"))

    return Contender("llama.cpp", form, "HTTP", start, _installed(LLAMA_CPP, form))


def _openvino(form: str) -> Contender:
    def start(machine: Machine) -> Worker:
        module = "benchmarks.peers.workers.openvino_worker"
        # It chooses bfloat16 by what the processor has, not by what it is held to, and then finds no such kernel.
        precision = "f32" if machine.isa == "avx2" else ""
        arguments = [str(gguf_file(machine.model, form)), str(machine.num_threads), precision]
        command = [str(environment_python(OPENVINO)), "-m", module, *arguments]
        return Worker(Program(f"OpenVINO, {form}", command, machine.environ, pipes=True))

    return Contender("OpenVINO GenAI", form, "offline", start, _installed(OPENVINO, form), obeys_isa=False)


def _installed(environment: Environment, form: str | None = None) -> Callable[[Machine], None]:
    def prepare(machine: Machine) -> None:
        environment_python(environment)
        if form is not None:
            gguf_file(machine.model, form)

    return prepare


CONTENDERS: Mapping[str, Contender] = {
    "bf16": _ours("bf16"),
    "int8": _ours("int8", "--quantize", "w8a16"),
    "float32": _ours("float32", "--dtype", "float32"),
    "transformers-float32": _transformers("float32", "float32"),
    "transformers-bf16": _transformers("bf16", "bfloat16"),
    "vllm-bf16": _vllm("bf16", "bfloat16"),
    "vllm-float32": _vllm("float32", "float32"),
    **{f"llama.cpp-{form}": _llama_cpp(form) for form in FORMATS},
    **{f"openvino-{form}": _openvino(form) for form in FORMATS if form != "Q4_1"},
}


def prepare(names: Sequence[str], machine: Machine) -> tuple[list[str], dict[str, str]]:
    """Install and convert what is missing.

    Returns: the names that are ready, and of the others why not.
    """
    ready: list[str] = []
    missing: dict[str, str] = {}
    for name in names:
        try:
            CONTENDERS[name].prepare(machine)
            ready.append(name)
        except EnvironmentNotMade as error:
            missing[name] = str(error)
    return ready, missing
