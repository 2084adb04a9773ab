"""GGUF files become folders whose models and tokenizers compute what the originals do."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.server.download.gguf_writer import round_weights, write_gguf
from tests.support.checkpoints import Family, make_checkpoint
from text_generation_server.download import DownloadError, DownloadPlaces, download_weights
from text_generation_server.download.gguf_conversion import write_model_folder
from text_generation_server.download.gguf_file import GGUFFile

F32, F16, Q8_0, Q4_1 = (GGMLQuantizationType[name] for name in ("F32", "F16", "Q8_0", "Q4_1"))
TEXT = "The capital of France is Paris, 12 34."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model of the shapes that quantized rows need (multiples of 32)."""
    return load(make_checkpoint(tmp_path_factory.mktemp("llama"), intermediate_size=128))


@pytest.fixture(scope="module")
def gguf(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(model, tmp_path_factory.mktemp("gguf") / "tiny.gguf", Q8_0)


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(torch.arange(1, 60)[None]).logits
    return result


@pytest.mark.parametrize(
    ("family", "kind", "config"),
    [
        ("llama", F32, {}),
        ("llama", F16, {}),
        ("llama", Q8_0, {"tie_word_embeddings": True}),
        (
            "llama",
            Q4_1,
            {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "attention_bias": True},
        ),
        ("llama", Q8_0, {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
        ("mistral", Q8_0, {}),
        ("qwen2", Q8_0, {}),
        ("qwen3", F32, {"head_dim": 32}),
    ],
)
def test_converted_model_computes_the_logits_of_the_original(
    family: Family, kind: GGMLQuantizationType, config: dict[str, Any], tmp_path: Path, places: DownloadPlaces
) -> None:
    original = load(make_checkpoint(tmp_path / "source", family, intermediate_size=128, **config))
    folder = download_weights(str(write_gguf(original, tmp_path / "model.gguf", kind)), places=places)
    round_weights(original, kind)
    torch.testing.assert_close(logits(load(folder)), logits(original), rtol=1e-6, atol=1e-6)


def test_stated_dtype_is_that_of_the_file_and_bfloat16_for_quantized_ones(
    model: Any, gguf: Path, tmp_path: Path, places: DownloadPlaces
) -> None:
    half = write_gguf(model, tmp_path / "half.gguf", F16)
    for path, dtype in ((gguf, torch.bfloat16), (half, torch.float16)):
        stored = AutoModelForCausalLM.from_pretrained(download_weights(str(path), places=places), dtype="auto")
        assert {parameter.dtype for parameter in stored.parameters()} == {dtype}


def test_tokenizer_and_template_are_those_of_the_original(model: Any, gguf: Path, places: DownloadPlaces) -> None:
    folder = download_weights(str(gguf), places=places)
    theirs, ours = AutoTokenizer.from_pretrained(model.name_or_path), AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": TEXT}]
    for text in (TEXT, "<s>a</s><pad>", "  \n 3", "é你😀"):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    assert ours.apply_chat_template(messages) == theirs.apply_chat_template(messages)
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert ours.decode([1, 40, 2], skip_special_tokens=True) == theirs.decode([1, 40, 2], skip_special_tokens=True)


@pytest.mark.parametrize(
    ("flags", "ends"), [({}, (0, 0)), ({"bos": True}, (1, 0)), ({"bos": True, "eos": True}, (1, 1))]
)
def test_bos_and_eos_are_added_as_the_file_says(
    model: Any, flags: dict[str, bool], ends: tuple[int, int], tmp_path: Path, places: DownloadPlaces
) -> None:
    metadata = {f"tokenizer.ggml.add_{name}_token": value for name, value in flags.items()}
    path = write_gguf(model, tmp_path / "ends.gguf", Q8_0, metadata=metadata)
    tokenizer = Tokenizer.from_file(str(download_weights(str(path), places=places) / "tokenizer.json"))
    plain = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert tokenizer.encode(TEXT).ids == [1] * ends[0] + plain + [2] * ends[1]


def test_every_token_that_ends_a_turn_stops_generation(model: Any, tmp_path: Path, places: DownloadPlaces) -> None:
    path = write_gguf(model, tmp_path / "ends.gguf", Q8_0, metadata={"tokenizer.ggml.eot_token_id": 7})
    assert load(download_weights(str(path), places=places)).generation_config.eos_token_id == [2, 7]


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_is_recognized_by_its_factors(factor: float, tmp_path: Path, places: DownloadPlaces) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    source = make_checkpoint(
        tmp_path / "source", head_dim=64, intermediate_size=128, rope_parameters=rope, max_position_embeddings=131072
    )
    original = load(source)
    plain = rope["rope_theta"] ** -(np.arange(0, 64, 2) / 64)  # type: ignore[operator]
    factors = (plain / original.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    path = write_gguf(original, tmp_path / "model.gguf", F32, tensors={"rope_freqs.weight": factors})
    converted = load(download_weights(str(path), places=places))
    torch.testing.assert_close(converted.model.rotary_emb.inv_freq, original.model.rotary_emb.inv_freq)
    torch.testing.assert_close(logits(converted), logits(original))
    factors[3] *= 1.5
    path = write_gguf(original, tmp_path / "other.gguf", F32, tensors={"rope_freqs.weight": factors})
    with pytest.raises(DownloadError, match="rope factors of a kind that cannot be read"):
        download_weights(str(path), places=places)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    ],
)
def test_scaled_rope_is_carried_over(rope: dict[str, Any], tmp_path: Path, places: DownloadPlaces) -> None:
    parameters = {**rope, "rope_theta": 10000.0}
    original = load(make_checkpoint(tmp_path / "source", intermediate_size=128, rope_parameters=parameters))
    keys = {"rope_type": "type", "factor": "factor", "original_max_position_embeddings": "original_context_length"}
    metadata = {f"llama.rope.scaling.{keys[name]}": value for name, value in rope.items()}
    path = write_gguf(original, tmp_path / "model.gguf", F32, metadata=metadata)
    torch.testing.assert_close(logits(load(download_weights(str(path), places=places))), logits(original))


def test_replaced_file_is_converted_anew(model: Any, tmp_path: Path, places: DownloadPlaces) -> None:
    path = write_gguf(model, tmp_path / "model.gguf", Q8_0)
    first = download_weights(str(path), places=places)
    assert download_weights(str(path), places=places) == first
    write_gguf(model, path, F32)
    assert download_weights(str(path), places=places) != first


def test_two_starts_at_once_convert_once(gguf: Path, places: DownloadPlaces) -> None:
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from text_generation_server.download.gguf_conversion import convert_gguf\n"
        "print(convert_gguf(Path(sys.argv[1]), Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", script, str(gguf), str(places.cache)]
    starts = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = [start.communicate(timeout=60) for start in starts]
    assert [start.returncode for start in starts] == [0, 0]
    assert len({output for output, _ in ended}) == 1
    assert sum("Converting tiny.gguf" in errors for _, errors in ended) == 1
    assert [path.name for path in (places.cache / "gguf").glob("*.partial")] == []


@pytest.mark.parametrize(
    ("metadata", "line"),
    [
        ({"llama.expert_count": 8}, "mixture of 8 experts; only dense models are read"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "scales its rope by longrope"),
        ({"split.count": 3}, "is one of 3 parts: join them"),
        ({"llama.rope.dimension_count": 8}, "turns only part of each head by its rope"),
    ],
)
def test_model_of_another_kind_is_refused_in_one_line(
    model: Any, metadata: dict[str, Any], line: str, tmp_path: Path, places: DownloadPlaces
) -> None:
    path = write_gguf(model, tmp_path / "other.gguf", Q8_0, metadata=metadata)
    with pytest.raises(DownloadError, match=line) as caught:
        download_weights(str(path), places=places)
    assert "\n" not in str(caught.value)


def test_unknown_architecture_split_and_tensor_are_refused(
    model: Any, gguf: Path, tmp_path: Path, places: DownloadPlaces
) -> None:
    other = tmp_path / "mamba.gguf"
    other.write_bytes(
        gguf.read_bytes().replace(b"\x05\x00\x00\x00\x00\x00\x00\x00llama", b"\x05\x00\x00\x00\x00\x00\x00\x00mamba")
    )
    with pytest.raises(DownloadError, match="architecture mamba; those that can be read: llama, qwen2, qwen3"):
        download_weights(str(other), places=places)
    unknown_split = write_gguf(model, tmp_path / "split.gguf", Q8_0, pre="bloom")
    with pytest.raises(DownloadError, match="splits text the way of bloom, which is not known here; known: gpt-2, "):
        download_weights(str(unknown_split), places=places)
    gate = {"blk.0.ffn_gate_inp.weight": np.zeros((4, 64), np.float32)}
    with pytest.raises(DownloadError, match=r"holds a tensor blk\.0\.ffn_gate_inp\.weight"):
        download_weights(str(write_gguf(model, tmp_path / "gate.gguf", Q8_0, tensors=gate)), places=places)
    assert list((places.cache / "gguf").glob("*/")) == []


def test_type_that_cannot_be_dequantized_is_refused(gguf: Path, tmp_path: Path, places: DownloadPlaces) -> None:
    content = bytearray(gguf.read_bytes())
    name = b"blk.0.attn_v.weight"
    kind_at = content.index(name) + len(name) + 4 + 2 * 8
    assert content[kind_at] == Q8_0
    content[kind_at] = GGMLQuantizationType.Q8_K
    content += bytes(1 << 16)  # the longer rows must not end after the file
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    with pytest.raises(DownloadError, match=r"blk\.0\.attn_v\.weight|damaged"):
        download_weights(str(path), places=places)


def test_foreign_and_missing_files_are_one_line(tmp_path: Path, places: DownloadPlaces) -> None:
    for content in (b"", b"hello", b"PK\x03\x04" + bytes(100)):
        (tmp_path / "foreign.gguf").write_bytes(content)
        with pytest.raises(DownloadError, match=r"foreign\.gguf is not a GGUF file"):
            download_weights(str(tmp_path / "foreign.gguf"), places=places)
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(DownloadError, match=r"model\.bin is a file: use --model-id with the folder"):
        download_weights(str(tmp_path / "model.bin"), places=places)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0.0, 0.9999))
def test_file_cut_short_anywhere_is_one_line(gguf: Path, tmp_path: Path, share: float) -> None:
    content = gguf.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DownloadError, match=r"cut short or damaged|not a GGUF file") as caught:
        GGUFFile(path)
    assert "\n" not in str(caught.value)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(offset=st.integers(4, 6000), value=st.integers(0, 255))
def test_damaged_file_is_converted_or_refused_but_never_raises_anything_else(
    gguf: Path, tmp_path: Path, offset: int, value: int
) -> None:
    content = bytearray(gguf.read_bytes())
    content[offset] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with contextlib.suppress(DownloadError):
        write_model_folder(path, tmp_path)
