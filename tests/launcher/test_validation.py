"""What the launcher refuses before it starts anything: TGI's words on stderr, exit status 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from text_generation_launcher.devices import Devices, count_shards, find_devices, parse_device_list
from text_generation_launcher.errors import LauncherError
from text_generation_launcher.plan import LaunchPlan, make_plan
from text_generation_launcher.settings import parse_command_line


def plan(argv: str, **environ: str) -> LaunchPlan:
    return make_plan(parse_command_line(argv.split(), environ), environ)


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (
            "--max-input-tokens 5 --max-input-length 6",
            'ArgumentValidation("Both `max_input_tokens` (5) and `max_input_length` (6) are set. '
            'Please define only `max_input_tokens`; the other is its older name.")',
        ),
        (
            "--max-input-tokens 8 --max-total-tokens 8",
            'ArgumentValidation("`max_input_tokens`(8) must be < `max_total_tokens`(8)")',
        ),
        (
            "--max-input-length 9 --max-total-tokens 8",
            'ArgumentValidation("`max_input_tokens`(9) must be < `max_total_tokens`(8)")',
        ),
        (
            "--max-total-tokens 100 --max-batch-total-tokens 50",
            'ArgumentValidation("`max_total_tokens` must be <= `max_batch_total_tokens`. Given: 100 and 50")',
        ),
        (
            "--max-batch-prefill-tokens 100 --max-batch-total-tokens 50",
            'ArgumentValidation("`max_batch_prefill_tokens` must be <= `max_batch_total_tokens`. Given: 100 and 50")',
        ),
        (
            "--max-batch-prefill-tokens 10 --max-input-length 50 --prefill-chunking false",
            'ArgumentValidation("`max_batch_prefill_tokens` must be >= `max_input_length`. Given: 10 and 50")',
        ),
        ("--validation-workers 0", 'ArgumentValidation("`validation_workers` must be > 0")'),
        ("--max-batch-size 0", 'ArgumentValidation("`max_batch_size` must be > 0")'),
        ("--sharded true --num-shard 1", 'ArgumentValidation("`sharded` is true but `num_shard` <= 1")'),
        ("--num-shard 0", 'ArgumentValidation("`num_shard` cannot be < 1")'),
        ("--sharded true", 'NotEnoughCUDADevices("`sharded` is true but only found 1 CUDA devices")'),
        (
            "--quantize exl2 --num-shard 2",
            'ArgumentValidation("Sharding is currently not supported with `exl2` quantization")',
        ),
        ("--ngrok", 'ArgumentValidation("`ngrok-authtoken` must be set when using ngrok tunneling")'),
        (
            "--ngrok --ngrok-authtoken x",
            'ArgumentValidation("`ngrok-edge` must be set when using ngrok tunneling")',
        ),
        (
            "--ngrok --ngrok-authtoken x --ngrok-edge y",
            'ArgumentValidation("`ngrok` tunneling is not supported; run a tunnel of your own in front of --port")',
        ),
        ("--lora-adapters a@1,b@1@2", 'ArgumentValidation("Invalid LoRA adapter format: b@1@2")'),
        (
            "--dtype float16 --quantize gptq",
            'ArgumentValidation("Only 1 can be set between `dtype` and `quantize`, as both decide what the weights '
            'are. Given: float16 and gptq")',
        ),
        (
            "--model-id ./nowhere",
            'ArgumentValidation("./nowhere does not exist; give --model-id a folder, a .gguf file or a hub id")',
        ),
    ],
)
def test_combinations_that_cannot_work_are_refused_in_tgis_words(argv: str, wanted: str) -> None:
    with pytest.raises(LauncherError) as error_info:
        plan(argv)
    assert str(error_info.value) == wanted


@pytest.mark.parametrize(
    "argv",
    [
        "",
        "--max-input-length 7 --max-total-tokens 8 --max-batch-total-tokens 8",
        "--max-batch-prefill-tokens 10 --max-input-length 50",
        "--quantize bitsandbytes-nf4 --dtype float16",
        "--sharded true --num-shard 2",
        "--lora-adapters org/a@main,name=/path@main",
        "--model-id org/model",
    ],
)
def test_combinations_that_can_work_are_accepted(argv: str) -> None:
    assert plan(argv).num_shards in (1, 2)


def test_message_is_quoted_as_rust_would() -> None:
    assert str(LauncherError("DownloadError")) == "DownloadError"
    assert str(LauncherError("ArgumentValidation", 'a "b" c:\\d')) == 'ArgumentValidation("a \\"b\\" c:\\\\d")'


def test_path_to_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="nowhere does not exist"):
        plan(f"--model-id {tmp_path}/nowhere")
    assert plan(f"--model-id {tmp_path}").model_id == str(tmp_path)
    (tmp_path / "model.bin").touch()
    with pytest.raises(LauncherError, match=r"model\.bin is a file"):
        plan(f"--model-id {tmp_path}/model.bin")


def npus(*visible: int, variable: str | None = "ASCEND_RT_VISIBLE_DEVICES") -> Devices:
    return Devices("npu", variable, visible, "", False)


CPU = Devices("cpu", None, (), "", False)


@pytest.mark.parametrize(
    ("sharded", "num_shard", "devices", "wanted"),
    [
        (None, 2, CPU, 2),
        (False, 2, CPU, 2),
        (True, 2, npus(0, 1), 2),
        (False, None, npus(0, 1), 1),
        (True, None, npus(0, 1, 2), 3),
        (True, None, npus(0, 1, variable=None), 2),
        (None, None, npus(0, 1), 2),
        (None, None, npus(4), 1),
        (None, None, npus(0, 1, variable=None), 1),
        (None, None, CPU, 1),
    ],
)
def test_shard_count_table(sharded: bool | None, num_shard: int | None, devices: Devices, wanted: int) -> None:
    assert count_shards(sharded, num_shard, devices) == wanted


def test_more_shards_than_devices_names_both_numbers() -> None:
    with pytest.raises(LauncherError, match=r"--num-shard 4 needs 4 NPUs, but ASCEND_RT_VISIBLE_DEVICES has 2: 4,5"):
        count_shards(None, 4, npus(4, 5))


def test_sharded_with_one_device_is_refused() -> None:
    with pytest.raises(LauncherError) as error_info:
        count_shards(True, None, npus(7))
    assert str(error_info.value) == 'NotEnoughCUDADevices("`sharded` is true but only found 1 CUDA devices")'


@pytest.mark.parametrize(
    ("text", "wanted"), [("0", (0,)), ("4,5", (4, 5)), ("0-3", (0, 1, 2, 3)), ("0-1, 6", (0, 1, 6)), ("3,1", (3, 1))]
)
def test_device_lists_and_ranges(text: str, wanted: tuple[int, ...]) -> None:
    assert parse_device_list("ASCEND_RT_VISIBLE_DEVICES", text) == wanted


@pytest.mark.parametrize("text", ["", "a,b", "3-1", "0,,1", "-1", "0,0", "0-2,1"])
def test_bad_device_lists_are_refused_by_name(text: str) -> None:
    with pytest.raises(LauncherError, match="ASCEND_RT_VISIBLE_DEVICES="):
        parse_device_list("ASCEND_RT_VISIBLE_DEVICES", text)


def test_visible_devices_without_torch_npu_mean_a_warning_and_the_cpu() -> None:
    found = find_devices("auto", {"ASCEND_RT_VISIBLE_DEVICES": "0,1"}, has_torch_npu=False)
    assert (found.kind, found.visible, found.is_surprising) == ("cpu", (), True)
    assert count_shards(None, None, found) == 1


def test_device_follows_torch_npu(tmp_path: Path) -> None:
    for name in ("davinci3", "davinci0", "davinci_manager"):
        (tmp_path / name).touch()
    assert find_devices("auto", {}, has_torch_npu=False).kind == "cpu"
    assert find_devices("cpu", {"ASCEND_RT_VISIBLE_DEVICES": "0"}, has_torch_npu=True).kind == "cpu"
    assert find_devices("auto", {}, has_torch_npu=True, device_folder=tmp_path).visible == (0, 3)
    both = {"ASCEND_VISIBLE_DEVICES": "0-3", "ASCEND_RT_VISIBLE_DEVICES": "4,5"}
    assert find_devices("npu", both, has_torch_npu=True).visible == (4, 5)
    assert find_devices("auto", {"ASCEND_VISIBLE_DEVICES": "0-3"}, has_torch_npu=True).visible == (0, 1, 2, 3)
    with pytest.raises(LauncherError, match="--device npu needs torch_npu"):
        find_devices("npu", {}, has_torch_npu=False)


def test_typical_start_on_an_ascend_host_works_on_a_cpu(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    made = plan(
        f"--model-id {tmp_path} --port 8080",
        ASCEND_RT_VISIBLE_DEVICES="0",
        BIND_CPU="0",
        FLASH_ATTENTION="1",
        MAX_MEMORY_GB="28",
    )
    assert made.num_shards == 1
    assert made.serve.device == "cpu"
    assert made.serve.max_memory_gb == 28
    assert made.serve.use_flash_attention
    assert not made.serve.bind_cpu


def test_arguments_of_upstreams_test_suite(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    made = plan(
        f"--model-id {tmp_path} --port 8123 --master-port 29600 --shard-uds-path /tmp/tgi-tests-x-1-2-server "
        "--disable-grammar-support --num-shard 2 --dtype bfloat16 --kv-cache-dtype fp8_e5m2 --revision main "
        "--trust-remote-code --max-input-length 10 --max-batch-prefill-tokens 20 --max-total-tokens 20 "
        "--lora-adapters a,b --cuda-graphs 1,2",
        LOG_LEVEL="info,text_generation_router=debug",
        PREFILL_CHUNKING="1",
        USE_FLASH_ATTENTION="false",
    )
    assert made.num_shards == 2
    assert made.router.port == 8123
    assert made.serve.master_port == 29600
    assert made.router.max_input_tokens == made.serve.max_input_tokens == 10
    assert made.serve.lora_adapters == ("a", "b")
    assert made.serve.cuda_graphs == (1, 2)
    assert made.launcher.shard_uds_path == "/tmp/tgi-tests-x-1-2-server"
    assert made.serve.logger_level == "INFO"


V3_FLAGS = """
    --model-id=m --revision=main --validation-workers=2 --sharded=false --num-shard=1 --quantize=awq --speculate=2
    --kv-cache-dtype=fp8_e4m3fn --trust-remote-code --max-concurrent-requests=1 --max-best-of=1 --max-stop-sequences=1
    --max-top-n-tokens=1 --max-input-tokens=1 --max-total-tokens=2 --waiting-served-ratio=1.2
    --max-batch-prefill-tokens=2 --max-batch-total-tokens=2 --max-waiting-tokens=1 --max-batch-size=1 --cuda-graphs=0
    --hostname=127.0.0.1 --port=80 --prometheus-port=9000 --shard-uds-path=/tmp/x --master-addr=localhost
    --master-port=29500 --huggingface-hub-cache=/data --weights-cache-override=/data --disable-custom-kernels
    --cuda-memory-fraction=0.5 --rope-scaling=linear --rope-factor=2.0 --json-output --otlp-endpoint=x
    --otlp-service-name=x --cors-allow-origin=a --cors-allow-origin=b --api-key=k --watermark-gamma=0.5
    --watermark-delta=2.0 --ngrok-authtoken=x --ngrok-edge=x --tokenizer-config-path=x --disable-grammar-support
    --env --max-client-batch-size=4 --lora-adapters=x --usage-stats=off --payload-limit=2 --enable-prefill-logprobs
    --graceful-termination-timeout=90
"""


def test_every_flag_of_tgi_is_accepted_and_forwarded_by_value() -> None:
    made = plan(V3_FLAGS)
    assert made.serve.otlp_service_name == made.router.otlp_service_name == "x"
    assert made.router.cors_allow_origin == ("a", "b")
    router = made.router_program()
    assert "k" not in router.arguments
    assert router.environment["API_KEY"] == "k"
    shard = made.shard_program(0)
    assert shard.environment["CUDA_GRAPHS"] == "0"
    assert shard.environment["MAX_TOTAL_TOKENS"] == "2"
    assert "API_KEY" not in shard.environment


def test_options_without_effect_are_named_once_each() -> None:
    environment = {"PROMETHEUS_PORT": "3", "BIND_CPU": "1"}
    values = parse_command_line(["--lora-adapters", "a", "--usage-stats=off"], environment)
    lines = values.without_effect("cpu")
    assert [line.split(" has no effect")[0] for line in lines] == [
        "PROMETHEUS_PORT",
        "--usage-stats",
        "--lora-adapters",
        "BIND_CPU",
    ]


def test_children_see_values_and_not_the_launchers_variables() -> None:
    made = plan("--port 3001", PORT="80", HOSTNAME="abc123", MASTER_PORT="tcp://10.0.0.1:80", HCCL_BUFFSIZE="110")
    router = made.router_program()
    assert router.arguments[router.arguments.index("--port") + 1] == "3001"
    assert "PORT" not in router.environment
    assert "HOSTNAME" not in router.environment
    shard = made.shard_program(0)
    assert shard.environment["MASTER_PORT"] == "29500"
    assert shard.environment["HCCL_BUFFSIZE"] == "110"


def test_api_key_never_reaches_a_command_line_or_the_log() -> None:
    values = parse_command_line([], {"API_KEY": "s3cret"})
    assert "s3cret" not in str(values.given())
    made = make_plan(values, {"API_KEY": "s3cret"})
    programs = (made.router_program(), made.shard_program(0), made.download_program())
    assert all("s3cret" not in " ".join(program.arguments) for program in programs)
    assert made.router_program().environment["API_KEY"] == "s3cret"


def test_shards_share_the_cores_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("text_generation_launcher.plan.usable_cores", lambda: 8)
    assert plan("--num-shard 3").shard_program(1).environment["OMP_NUM_THREADS"] == "2"
    assert plan("--num-shard 9").shard_program(1).environment["OMP_NUM_THREADS"] == "1"
    assert plan("", OMP_NUM_THREADS="5").shard_program(0).environment["OMP_NUM_THREADS"] == "5"


def test_ranks_differ_in_nothing_but_the_rank() -> None:
    made = plan("--num-shard 2")
    first, second = made.shard_program(0), made.shard_program(1)
    assert first.arguments == second.arguments
    assert first.environment | {"RANK": "1"} == second.environment
    assert second.environment["WORLD_SIZE"] == "2"
    assert "--sharded" in second.arguments


def test_without_a_model_the_demo_model_is_meant() -> None:
    assert plan("").download_program().arguments[3:5] == ["download-weights", "demo"]


def test_hf_transfer_is_not_asked_for_where_it_is_missing() -> None:
    assert plan("", HF_HUB_ENABLE_HF_TRANSFER="1").download_program().environment["HF_HUB_ENABLE_HF_TRANSFER"] == "0"


def test_hf_api_token_is_handed_on_under_its_newer_name() -> None:
    assert plan("", HF_API_TOKEN="t").download_program().environment["HF_TOKEN"] == "t"
