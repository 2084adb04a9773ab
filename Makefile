# One command each. Every target makes .venv by itself; PYTHON chooses the interpreter it is made from.
PYTHON ?= python3
PORT ?= 8080
PROTO_OUT ?= proto
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# What pip leaves uncompiled (below) is compiled by the first program that imports it, and must then be kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test fuzz clients check format bench bench-peers bench-roofline bench-router bench-scale \
    bench-serve bench-startup check-torch-npu conformance-npu proto wheel clean

run: $(STAMP)
	$(BIN)/text-generation-launcher --port $(PORT) $(ARGS)

# OMP_NUM_THREADS: two OpenMP programs on two cores stall each other, and the tests start several processes.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(ARGS)

# Thousands of requests made from the OpenAPI document, to a server with a tiny model: ARGS="--requests 5000".
fuzz: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.integration.fuzzing $(ARGS)

# The environments of the client libraries that tests/clients talks through; the tests make them too, if they are missing.
clients: $(STAMP)
	$(BIN)/python -m tests.support.client_envs

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The CPU's native kernels, after a change of their sources; an installation builds them by itself.
native: $(STAMP)
	$(BIN)/python -m text_generation_kernels.native.build

# A C++ program that compares the native kernels with plain loops: under sanitizers, and for Arm under qemu-user.
check-sanitize: $(STAMP)
	$(BIN)/python -m tests.kernels.native.driver.run sanitize

check-neon: $(STAMP)
	$(BIN)/python -m tests.kernels.native.driver.run neon

# The NPU code on the real torch_npu wheel, over a stand-in for the CANN runtime that is built for it. .venv-npu/ has the
# wheel and nothing else.
check-torch-npu: $(STAMP)
	TEST_TORCH_NPU_WHEEL=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/torch_npu_wheel $(ARGS)

# The demo model on emulated NPUs, every chip with every way to serve it, beside the CPU: 25 minutes on two cores.
# ARGS="--write docs/ascend.md --write docs/ascend.zh.md" puts the table there; --chips and --shards choose a part.
conformance-npu: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.conformance.npu_matrix $(ARGS)

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Speed, as tables; ARGS="--write docs/performance.md" puts them there, ARGS=--help lists what can be chosen.
# bench: our server beside transformers, which needs no installation. bench-peers: beside all, each in .venv-peers/.
bench: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.peers --only bf16 transformers-float32 $(ARGS)

bench-peers: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.peers $(ARGS)

bench-roofline: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.roofline $(ARGS)

bench-router: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.router $(ARGS)

bench-scale: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.scale $(ARGS)

# From the launcher's command line to the first token; as root also with files that are not in the page cache.
bench-startup: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.startup $(ARGS)

# Load on a server that runs: ARGS="--url http://127.0.0.1:8080".
bench-serve: $(STAMP)
	$(BIN)/python -m benchmarks.serve $(ARGS)

# Thousands of mixed requests; fails if memory, blocks or speed get lost on the way.
soak: $(STAMP)
	$(BIN)/python -m benchmarks.soak $(ARGS)

proto: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=$(PROTO_OUT) --pyi_out=$(PROTO_OUT) \
	    --grpc_python_out=$(PROTO_OUT) proto/text_generation_proto/generate.proto

wheel: $(STAMP)
	$(BIN)/python -m build --wheel --no-isolation $(ARGS)

# An environment without pip is one whose making was cut short: it is made again. The stamp says that all is installed.
# --no-compile: compiling all of torch takes longer than fetching it, and most of it is never imported.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

$(BENCH_STAMP): | $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) .venv-clients .venv-npu .venv-peers dist build .mypy_cache .ruff_cache .pytest_cache \
	    emulator/text_generation_npu_emulator/wheel/build
