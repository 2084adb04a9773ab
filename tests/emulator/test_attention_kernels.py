"""Attention ops and cache writes against torch's own attention in float32, over shuffled pages of a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.emulator.conftest import MachineMaker
from text_generation_npu_emulator import Refused

NZ = 29
A2 = ("Ascend910B4", "Ascend910_9391")
FUSED = (*A2, "Ascend950PR")
BLOCK_SIZE = 16
NUM_BLOCKS = 24


@dataclass(frozen=True)
class Case:
    """Some sequences: q of the last `new` tokens, k and v of all, and a cache that k and v go to."""

    q: list[Tensor]
    k: list[Tensor]
    v: list[Tensor]
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def new(self) -> list[int]:
        return [len(q) for q in self.q]

    @property
    def kv_lens(self) -> list[int]:
        return [len(k) for k in self.k]

    @property
    def blocks(self) -> Tensor:
        table = torch.zeros(len(self.k), max(-(-n // BLOCK_SIZE) for n in self.kv_lens) + 1, dtype=torch.int32)
        free = iter((torch.randperm(NUM_BLOCKS - 1, generator=torch.Generator().manual_seed(3)) + 1).tolist())
        for row, n in enumerate(self.kv_lens):
            for place in range(-(-n // BLOCK_SIZE)):
                table[row, place] = next(free)
        return table

    @property
    def slots(self) -> Tensor:
        table = self.blocks
        return torch.tensor(
            [
                int(table[row, p // BLOCK_SIZE]) * BLOCK_SIZE + p % BLOCK_SIZE
                for row, n in enumerate(self.kv_lens)
                for p in range(n)
            ],
            dtype=torch.int32,
        )

    def expected(self) -> Tensor:
        """Causal attention, the last query on the last key."""
        parts = []
        for q, k, v in zip(self.q, self.k, self.v, strict=True):
            group = self.num_heads // self.num_kv_heads
            kk, vv = (t.float().repeat_interleave(group, 1).transpose(0, 1) for t in (k, v))
            visible = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
            out = torch.nn.functional.scaled_dot_product_attention(
                q.float().transpose(0, 1), kk, vv, attn_mask=visible, scale=self.scale
            )
            parts.append(out.transpose(0, 1))
        return torch.cat(parts)


def make_case(new: Sequence[int], cached: Sequence[int], heads: tuple[int, int] = (8, 2), head_dim: int = 128) -> Case:
    torch.manual_seed(0)
    num_heads, num_kv_heads = heads
    lens = [n + c for n, c in zip(new, cached, strict=True)]
    q = [torch.randn(n, num_heads, head_dim).half() for n in new]
    k, v = ([torch.randn(n, num_kv_heads, head_dim).half() for n in lens] for _ in range(2))
    return Case(q, k, v, num_heads, num_kv_heads, head_dim)


PREFILL = make_case([5, 19, 33], [0, 0, 0])
CHUNKS = make_case([5, 1, 16], [16, 40, 3])
DECODE = make_case([1, 1, 1], [15, 16, 47])


def ends(lengths: Sequence[int]) -> list[int]:
    return torch.tensor(lengths).cumsum(0).tolist()


def compressed_mask(dtype: torch.dtype = torch.int8) -> Tensor:
    return torch.ones(2048, 2048, dtype=dtype).triu(1).to("npu")


def cached(case: Case) -> tuple[Tensor, Tensor]:
    """Both caches on the card, (blocks, block size, heads, head size), rubbish where nothing was written."""
    shape = (NUM_BLOCKS, BLOCK_SIZE, case.num_kv_heads, case.head_dim)
    caches = [torch.full(shape, 99.0).half() for _ in range(2)]
    for cache, values in zip(caches, (case.k, case.v), strict=True):
        cache.view(-1, case.num_kv_heads, case.head_dim)[case.slots.long()] = torch.cat(values)
    return caches[0].to("npu"), caches[1].to("npu")


def nz_cache(cache: Tensor) -> Tensor:
    """A cache as 310P wants it: (blocks, heads * head size / 16, block size, 16) in FRACTAL_NZ."""
    host = cache.cpu()
    columns = host.shape[2] * host.shape[3] // 16
    arranged = host.reshape(host.shape[0], host.shape[1], columns, 16).transpose(1, 2).contiguous()
    nz: Tensor = torch.ops.npu.npu_format_cast(arranged.to("npu"), NZ)
    return nz


def close(out: Tensor, expected: Tensor) -> bool:
    return torch.allclose(out.cpu().float(), expected, atol=3e-3, rtol=3e-3)


def fused(case: Case, **changes: object) -> Tensor:
    """npu_fused_infer_attention_score over pages, causal, with some arguments changed."""
    k, v = cached(case)
    arguments: dict[str, object] = {
        "query": torch.cat(case.q).to("npu"),
        "key": k.flatten(2),
        "value": v.flatten(2),
        "atten_mask": compressed_mask(),
        "actual_seq_lengths": ends(case.new),
        "actual_seq_lengths_kv": case.kv_lens,
        "block_table": case.blocks.to("npu"),
        "num_heads": case.num_heads,
        "num_key_value_heads": case.num_kv_heads,
        "scale": case.scale,
        "input_layout": "TND",
        "sparse_mode": 3,
        "block_size": BLOCK_SIZE,
        **changes,
    }
    out: Tensor = torch.ops.npu.npu_fused_infer_attention_score(**arguments)[0]
    return out


@pytest.mark.parametrize("soc_name", FUSED)
@pytest.mark.parametrize("case", [PREFILL, CHUNKS, DECODE], ids=["prefill", "chunks", "decode"])
def test_fused_infer_attention_over_pages(make_machine: MachineMaker, soc_name: str, case: Case) -> None:
    make_machine(soc_name)
    assert close(fused(case), case.expected())


@pytest.mark.parametrize("soc_name", FUSED)
def test_fused_infer_attention_without_pages(make_machine: MachineMaker, soc_name: str) -> None:
    make_machine(soc_name)
    case = PREFILL
    k, v = (torch.cat(values).to("npu") for values in (case.k, case.v))
    out = fused(case, key=k, value=v, block_table=None, actual_seq_lengths_kv=ends(case.kv_lens), block_size=0)
    assert close(out, case.expected())


def test_second_version_has_other_names(make_machine: MachineMaker) -> None:
    make_machine()
    case = CHUNKS
    k, v = cached(case)
    out, lse = torch.ops.npu.npu_fused_infer_attention_score_v2(
        torch.cat(case.q).to("npu"),
        k.flatten(2),
        v.flatten(2),
        atten_mask=compressed_mask(torch.bool),
        actual_seq_qlen=ends(case.new),
        actual_seq_kvlen=case.kv_lens,
        block_table=case.blocks.to("npu"),
        num_query_heads=case.num_heads,
        num_key_value_heads=case.num_kv_heads,
        softmax_scale=case.scale,
        input_layout="TND",
        sparse_mode=3,
        block_size=BLOCK_SIZE,
        return_softmax_lse=True,
    )
    assert close(out, case.expected())
    q, keys = case.q[1].float(), case.k[1].float().repeat_interleave(4, 1)  # a row with one token, which sees all
    assert torch.allclose(
        lse.cpu()[5, :, 0], (torch.einsum("nd,tnd->nt", q[0], keys) * case.scale).logsumexp(-1), atol=1e-3
    )


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD"])
def test_padded_layouts_take_any_head_size(make_machine: MachineMaker, layout: str) -> None:
    """Nine heads of 64 that share three, as the demo model has them, which TND refuses."""
    make_machine()
    case = make_case([1, 1], [30, 5], heads=(9, 3), head_dim=64)
    q = torch.stack(case.q)  # [batch, 1, heads, head_dim]
    arranged = {"BSH": q.flatten(2), "BSND": q, "BNSD": q.transpose(1, 2).contiguous()}[layout]
    k, v = cached(case)
    bare: dict[str, object] = {"actual_seq_lengths": None, "atten_mask": None, "sparse_mode": 0}
    out = fused(case, query=arranged.to("npu"), input_layout=layout, **bare)
    backs: dict[str, Callable[[Tensor], Tensor]] = {
        "BSH": lambda t: t.view(2, 9, 64),
        "BSND": lambda t: t[:, 0],
        "BNSD": lambda t: t[:, :, 0],
    }
    assert close(backs[layout](out), case.expected())
    # The other layout of a cache: (blocks, heads, block size, head size).
    paged = [t.transpose(1, 2).contiguous() for t in (k, v)]
    out = fused(
        case,
        query=arranged.to("npu"),
        key=paged[0],
        value=paged[1],
        input_layout=layout,
        **bare,
    )
    assert close(backs[layout](out), case.expected())
    with pytest.raises(Refused, match="head size of 128 or 192"):
        fused(case)


REFUSED: dict[str, tuple[dict[str, Callable[[Case], object]], str]] = {
    "query not contiguous": ({"query": lambda c: torch.cat(c.q).to("npu").transpose(0, 1)}, "query must be contiguous"),
    "block_table of int64": ({"block_table": lambda c: c.blocks.long().to("npu")}, "block_table must be int32"),
    "block_table on the host": ({"block_table": lambda c: c.blocks}, "block_table must lie on the device"),
    "block size 24": ({"block_size": lambda c: 24}, "16..1024 by 16"),
    "block size 2048": ({"block_size": lambda c: 2048}, "16..1024 by 16"),
    "mask missing": ({"atten_mask": lambda c: None}, "needs the compressed mask"),
    "mask of the step's own size": ({"atten_mask": lambda c: compressed_mask()[:64, :64].contiguous()}, "2048 x 2048"),
    "mask of float16": ({"atten_mask": lambda c: compressed_mask().half()}, "bool, int8 or uint8"),
    "mask the other way round": ({"atten_mask": lambda c: 1 - compressed_mask()}, "1 means hidden"),
    "mask that hides a token from itself": (
        {"atten_mask": lambda c: torch.ones(2048, 2048, dtype=torch.int8).triu(0).to("npu")},
        "1 means hidden",
    ),
    "query lengths not cumulative": ({"actual_seq_lengths": lambda c: c.new}, "must be cumulative"),
    "key lengths cumulative": ({"actual_seq_lengths_kv": lambda c: ends(c.kv_lens)}, "per sequence, not cumulative"),
    "one key length too few": ({"actual_seq_lengths_kv": lambda c: c.kv_lens[:-1]}, "lengths of keys"),
    "heads that cannot share": ({"num_key_value_heads": lambda c: 3}, "cannot share"),
    "num_heads forgotten": ({"num_heads": lambda c: 1, "num_key_value_heads": lambda c: 0}, "query has 8 heads"),
    "block that is not there": ({"block_table": lambda c: (c.blocks + NUM_BLOCKS).to("npu")}, "blocks must lie within"),
    "float32": ({"query": lambda c: torch.cat(c.q).float().to("npu")}, "float16 or bfloat16"),
    "dtypes that differ": ({"query": lambda c: torch.cat(c.q).bfloat16().to("npu")}, "dtypes differ"),
    "no query": ({"query": lambda c: torch.cat(c.q)[:0].to("npu")}, "query is empty"),
    "argument that is not emulated": ({"query_rope": lambda c: torch.cat(c.q).to("npu")}, "query_rope is not emulated"),
    "unknown layout": ({"input_layout": lambda c: "NTD"}, "not emulated"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_fused_infer_attention_refuses(make_machine: MachineMaker, name: str) -> None:
    """Rows "FIA kv lengths cumulative with block_table" and "compressed mask of wrong polarity/size" among others."""
    make_machine()
    changes, error = REFUSED[name]
    with pytest.raises(Refused, match=error):
        fused(CHUNKS, **{argument: make(CHUNKS) for argument, make in changes.items()})


def test_limits_of_padded_layouts(make_machine: MachineMaker) -> None:
    """A chunk over pages wants blocks of 128 to 512, decode steps take any multiple of 16 up to that."""
    make_machine()
    case = make_case([4, 4], [20, 20])
    q = torch.stack(case.q).to("npu")
    with pytest.raises(Refused, match="128, 256, 384 or 512"):
        fused(case, query=q, input_layout="BSND", actual_seq_lengths=None)
    wide = make_case([1], [20], heads=(8, 8), head_dim=520)
    with pytest.raises(Refused, match=r"16\.\.512 by 16"):
        fused(wide, query=torch.stack(wide.q).to("npu"), input_layout="BSND", actual_seq_lengths=None)
    many = torch.zeros(4097, 8, 128, dtype=torch.float16, device="npu")
    with pytest.raises(Refused, match="at most 4096 sequences"):
        fused(case, query=many, actual_seq_lengths=list(range(1, 4098)))


def test_length_lists_made_of_the_cards_tensors_wait_for_the_card(make_machine: MachineMaker) -> None:
    machine = make_machine()
    lengths = torch.tensor(CHUNKS.kv_lens, dtype=torch.int32, device="npu").unbind()
    before = machine.counters.waits
    fused(CHUNKS, actual_seq_lengths_kv=lengths)
    assert machine.counters.waits - before >= 3


def test_per_sequence_key_lengths_without_pages_are_refused(make_machine: MachineMaker) -> None:
    make_machine()
    k, v = (torch.cat(values).to("npu") for values in (PREFILL.k, PREFILL.v))
    with pytest.raises(Refused, match="actual_seq_lengths_kv must be cumulative"):
        fused(PREFILL, key=k, value=v, block_table=None, actual_seq_lengths_kv=PREFILL.kv_lens)


def test_row_that_sees_nothing_needs_the_precise_mode(make_machine: MachineMaker) -> None:
    make_machine()
    lens = [3, *CHUNKS.kv_lens[1:]]
    with pytest.raises(Refused, match="inner_precise must be 2 or 3"):
        fused(CHUNKS, actual_seq_lengths_kv=lens)
    assert not fused(CHUNKS, actual_seq_lengths_kv=lens, inner_precise=2)[:2].any()


def test_without_a_scale_it_is_one(make_machine: MachineMaker) -> None:
    """Row "FIA without scale": the chip takes it, and the answer is another."""
    make_machine()
    k, v = cached(DECODE)
    out = torch.ops.npu.npu_fused_infer_attention_score(
        torch.cat(DECODE.q).to("npu"),
        k.flatten(2),
        v.flatten(2),
        actual_seq_lengths=ends(DECODE.new),
        actual_seq_lengths_kv=DECODE.kv_lens,
        block_table=DECODE.blocks.to("npu"),
        num_heads=8,
        num_key_value_heads=2,
        input_layout="TND",
        block_size=BLOCK_SIZE,
    )[0]
    assert not close(out, DECODE.expected())
    assert torch.equal(out.cpu(), fused(DECODE, scale=1.0).cpu())


def test_what_a_silent_chip_makes_of_a_wrong_mask(make_machine: MachineMaker) -> None:
    """A lower triangle hides the past; without a mask every token sees the future."""
    make_machine(silent=True)
    upside_down = fused(PREFILL, atten_mask=1 - compressed_mask())
    assert not close(upside_down, PREFILL.expected())
    blind = fused(PREFILL, atten_mask=None)
    last = [end - 1 for end in ends(PREFILL.new)]
    assert close(blind[last], PREFILL.expected()[last])
    assert not close(blind, PREFILL.expected())


def test_bands_and_whole_masks(make_machine: MachineMaker) -> None:
    """sparse_mode 0 with a mask of one's own, 2 from the upper left corner, 4 within a window."""
    make_machine()
    case = make_case([12], [0])
    one = {"key": case.k[0].to("npu"), "value": case.v[0].to("npu"), "block_table": None, "actual_seq_lengths_kv": [12]}
    own = torch.ones(12, 12, dtype=torch.bool).triu(1).to("npu")
    assert close(fused(case, **one, sparse_mode=0, atten_mask=own), case.expected())
    assert close(fused(case, **one, sparse_mode=2), case.expected())
    window = fused(case, **one, sparse_mode=4, pre_tokens=3, next_tokens=0)
    lone = Case([case.q[0][11:]], [case.k[0][8:]], [case.v[0][8:]], 8, 2, 128)
    assert close(window[11:], lone.expected())


@pytest.mark.parametrize("soc_name", FUSED)
def test_fusion_attention(make_machine: MachineMaker, soc_name: str) -> None:
    make_machine(soc_name)
    q, k, v = (torch.cat(values).to("npu") for values in (PREFILL.q, PREFILL.k, PREFILL.v))
    results = torch.ops.npu.npu_fusion_attention(
        q,
        k,
        v,
        8,
        "TND",
        atten_mask=compressed_mask(torch.bool),
        scale=PREFILL.scale,
        actual_seq_qlen=ends(PREFILL.new),
        actual_seq_kvlen=ends(PREFILL.new),
        sparse_mode=3,
    )
    assert len(results) == 7
    assert close(results[0], PREFILL.expected())
    assert tuple(results[1].shape) == (57, 8, 8)


@pytest.mark.parametrize("soc_name", ["Ascend310P3", *A2])
@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD"])
def test_prompt_flash_attention(make_machine: MachineMaker, soc_name: str, layout: str) -> None:
    make_machine(soc_name)
    case = make_case([32], [0])
    tensors = []
    for values in (case.q, case.k, case.v):
        t = torch.stack(values)
        arranged = {"BSH": t.flatten(2), "BSND": t, "BNSD": t.transpose(1, 2).contiguous()}[layout]
        tensors.append(arranged.to("npu"))
    mask = torch.ones(32, 32, dtype=torch.bool).triu(1).to("npu")

    def attention(**changes: object) -> Tensor:
        options = {"num_heads": 8, "num_key_value_heads": 2, "scale_value": case.scale, "input_layout": layout}
        out: Tensor = torch.ops.npu.npu_prompt_flash_attention(*tensors, atten_mask=mask, **{**options, **changes})
        return out

    out = attention(next_tokens=0)
    back = out.view(1, 32, 8, 128) if layout != "BNSD" else out.transpose(1, 2)
    assert close(back[0], case.expected())
    if soc_name == "Ascend310P3":
        for changes, error in (
            ({"actual_seq_lengths": [32]}, "not supported"),
            ({"sparse_mode": 3, "next_tokens": 5}, "2048 x 2048"),
            ({"next_tokens": 5}, "next_tokens must be 0"),
            ({"pre_tokens": 5}, "pre_tokens"),
            ({"input_layout": "TND"}, "must be BSH, BSND or BNSD"),
        ):
            with pytest.raises(Refused, match=error):
                attention(**changes)


def test_prompt_flash_attention_without_a_mask_sees_all(make_machine: MachineMaker) -> None:
    make_machine()
    q = torch.stack(make_case([32], [0]).q).to("npu")
    with pytest.raises(Refused, match="every token sees all"):
        torch.ops.npu.npu_prompt_flash_attention(q, q, q, num_heads=8, input_layout="BSND")


@pytest.mark.parametrize("soc_name", ["Ascend310P3", *A2])
def test_incre_flash_attention(make_machine: MachineMaker, soc_name: str) -> None:
    make_machine(soc_name)
    q = torch.stack(DECODE.q)
    k, v = cached(DECODE)

    def attention(layout: str, **changes: object) -> Tensor:
        is_bnsd = layout == "BNSD"
        arguments: dict[str, object] = {
            "query": (q.transpose(1, 2).contiguous() if is_bnsd else q.flatten(2)).to("npu"),
            "key": k.transpose(1, 2).contiguous() if is_bnsd else k.flatten(2),
            "value": v.transpose(1, 2).contiguous() if is_bnsd else v.flatten(2),
            "actual_seq_lengths": DECODE.kv_lens,
            "block_table": DECODE.blocks.to("npu"),
            "num_heads": 8,
            "num_key_value_heads": 2,
            "scale_value": DECODE.scale,
            "input_layout": layout,
            "block_size": BLOCK_SIZE,
            **changes,
        }
        out: Tensor = torch.ops.npu.npu_incre_flash_attention(**arguments)
        return out.reshape(3, 8, 128)

    for layout in ("BNSD", "BSH"):
        assert close(attention(layout), DECODE.expected())
    for changes, error in (
        ({"actual_seq_lengths": None}, "needs actual_seq_lengths"),
        ({"block_size": 24}, "multiple of 16"),
        ({"actual_seq_lengths": ends(DECODE.kv_lens)}, "not cumulative"),
        ({"query": torch.cat((q, q), 1).flatten(2).to("npu")}, "one query token"),
        ({"block_table": DECODE.blocks.long().to("npu")}, "int32"),
    ):
        with pytest.raises(Refused, match=error):
            attention("BSH", **changes)


def padded_case() -> Case:
    """Whole prompts whose tokens are a multiple of 16, as 310P wants them."""
    return make_case([5, 27], [0, 0])


def additive_mask(size: int, value: float = -10000.0, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.full((size, size), value).triu(1).to(dtype)


def nz_mask(plane: Tensor) -> Tensor:
    """(rows, columns) as (1, columns / 16, rows, 16) in FRACTAL_NZ."""
    rows, columns = plane.shape
    blocks = plane.view(rows, columns // 16, 16).transpose(0, 1)[None].contiguous().to("npu")
    nz: Tensor = torch.ops.npu.npu_format_cast(blocks, NZ)
    return nz


def flash(case: Case, mask: Tensor, **changes: object) -> Tensor:
    """_npu_flash_attention into an output of its own."""
    q, k, v = (torch.cat(values).to("npu") for values in (case.q, case.k, case.v))
    out = torch.empty_like(q)
    arguments: dict[str, object] = {
        "query": q,
        "key": k,
        "value": v,
        "mask": mask,
        "seq_len": torch.tensor(case.new, dtype=torch.int32),
        "scale_value": case.scale,
        "num_heads": case.num_heads,
        "num_kv_heads": case.num_kv_heads,
        "out": out,
        **changes,
    }
    torch.ops.atb._npu_flash_attention(**arguments)
    return out


@pytest.mark.parametrize("soc_name", A2)
def test_atb_flash_attention(make_machine: MachineMaker, soc_name: str) -> None:
    make_machine(soc_name)
    mask = additive_mask(64, float("-inf")).to("npu")
    assert close(flash(PREFILL, mask), PREFILL.expected())
    with pytest.raises(Refused, match="seq_len must lie on the host"):
        flash(PREFILL, mask, seq_len=torch.tensor(PREFILL.new, dtype=torch.int32, device="npu"))
    with pytest.raises(Refused, match="seq_len must be int32"):
        flash(PREFILL, mask, seq_len=torch.tensor(PREFILL.new))
    with pytest.raises(Refused, match="add up to"):
        flash(PREFILL, mask, seq_len=torch.tensor([5, 19, 30], dtype=torch.int32))
    with pytest.raises(Refused, match="large negative number"):
        flash(PREFILL, additive_mask(64, 1.0).to("npu"))
    with pytest.raises(Refused, match="cover 33 tokens"):
        flash(PREFILL, additive_mask(32).to("npu"))


def test_atb_mask_of_bfloat16_holds_ones(make_machine: MachineMaker) -> None:
    make_machine()
    q, k, v = ([t.bfloat16() for t in values] for values in (PREFILL.q, PREFILL.k, PREFILL.v))
    case = Case(q, k, v, num_heads=8, num_kv_heads=2, head_dim=128)
    out = flash(case, additive_mask(64, 1.0, torch.bfloat16).to("npu"))
    assert torch.allclose(out.cpu().float(), case.expected(), atol=3e-2)
    with pytest.raises(Refused, match="holds 1 where"):
        flash(case, additive_mask(64, float("-inf"), torch.bfloat16).to("npu"))


def test_atb_flash_attention_on_310p(make_machine: MachineMaker) -> None:
    make_machine("Ascend310P3")
    case = padded_case()
    mask = nz_mask(additive_mask(32))
    assert close(flash(case, mask), case.expected())
    with pytest.raises(Refused, match="multiple of 16"):
        flash(PREFILL, nz_mask(additive_mask(48)))
    with pytest.raises(Refused, match="must be in FRACTAL_NZ"):
        flash(case, additive_mask(32).to("npu"))


def test_atb_flash_attention_v3_has_one_mask_for_all_lengths(make_machine: MachineMaker) -> None:
    make_machine("Ascend310P3")
    case = padded_case()
    q, k, v = (torch.cat(values).to("npu") for values in (case.q, case.k, case.v))
    out = torch.empty_like(q)
    lengths = torch.tensor(case.new, dtype=torch.int32)
    fixed = nz_mask(additive_mask(2048))
    torch.ops.atb._npu_flash_attention_v3(q, k, v, fixed, lengths, case.scale, 8, 2, mask_type=3, out=out)
    assert close(out, case.expected())
    with pytest.raises(Refused, match="mask_type must be 3"):
        torch.ops.atb._npu_flash_attention_v3(q, k, v, fixed, lengths, case.scale, 8, 2, mask_type=2, out=out)
    with pytest.raises(Refused, match="strictly above the diagonal"):
        torch.ops.atb._npu_flash_attention_v3(
            q, k, v, nz_mask(additive_mask(2048).t().contiguous()), lengths, case.scale, 8, 2, out=out
        )


def test_atb_flash_attention_unpad_sees_all(make_machine: MachineMaker) -> None:
    make_machine()
    q, k, v = (torch.cat(values).to("npu") for values in (PREFILL.q, PREFILL.k, PREFILL.v))
    out = torch.empty_like(q)
    torch.ops.atb._npu_flash_attention_unpad(
        q, k, v, torch.tensor(PREFILL.new, dtype=torch.int32), PREFILL.scale, 8, 2, out
    )
    last = [end - 1 for end in ends(PREFILL.new)]
    assert close(out[last], PREFILL.expected()[last])


def paged(case: Case, k: Tensor, v: Tensor, lengths: Tensor | None = None, table: Tensor | None = None) -> Tensor:
    q = torch.cat(case.q).to("npu")
    out = torch.empty_like(q)
    lengths = torch.tensor(case.kv_lens, dtype=torch.int32) if lengths is None else lengths
    table = case.blocks.to("npu") if table is None else table
    torch.ops.atb._npu_paged_attention(q, k, v, 2, 8, case.scale, table, lengths, out)
    return out


@pytest.mark.parametrize("soc_name", ["Ascend310P3", *A2])
@pytest.mark.parametrize("lengths_on", ["cpu", "npu"])
def test_atb_paged_attention(make_machine: MachineMaker, soc_name: str, lengths_on: str) -> None:
    make_machine(soc_name)
    k, v = cached(DECODE)
    lengths = torch.tensor(DECODE.kv_lens, dtype=torch.int32).to(lengths_on)
    if soc_name == "Ascend310P3":
        with pytest.raises(Refused, match="key_cache must be in FRACTAL_NZ"):
            paged(DECODE, k, v, lengths)
        k, v = nz_cache(k), nz_cache(v)
    assert close(paged(DECODE, k, v, lengths), DECODE.expected())
    with pytest.raises(Refused, match="context_lens must be int32"):
        paged(DECODE, k, v, lengths.long())
    with pytest.raises(Refused, match="block_table must be int32"):
        paged(DECODE, k, v, lengths, DECODE.blocks.long().to("npu"))
    with pytest.raises(Refused, match="not cumulative"):
        paged(DECODE, k, v, torch.tensor(ends(DECODE.kv_lens), dtype=torch.int32))


def test_atb_paged_attention_of_a2_cannot_read_nz(make_machine: MachineMaker) -> None:
    make_machine()
    torch.npu.config.allow_internal_format = True  # type: ignore[attr-defined]
    k, v = cached(DECODE)
    with pytest.raises(Refused, match="only the kernel of 310P"):
        paged(DECODE, nz_cache(k), v)


def splitfuse(case: Case, mask: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = torch.cat(case.q).to("npu")
    out = torch.empty_like(q)
    q_lens, kv_lens = (torch.tensor(lens, dtype=torch.int32) for lens in (case.new, case.kv_lens))
    torch.ops.atb._npu_paged_attention_splitfuse(
        q, k, v, case.blocks.to("npu"), kv_lens, mask, q_lens, 2, 8, case.scale, out
    )
    return out


def test_atb_splitfuse(make_machine: MachineMaker) -> None:
    make_machine()
    assert close(splitfuse(CHUNKS, compressed_mask(), *cached(CHUNKS)), CHUNKS.expected())
    make_machine("Ascend310P3")
    rows = torch.zeros(32, 64)
    for start, n, m in zip([0, 5, 6], CHUNKS.new, CHUNKS.kv_lens, strict=True):
        rows[start : start + n, :m] = torch.full((n, m), -10000.0).triu(m - n + 1)
    k, v = cached(CHUNKS)
    assert close(splitfuse(CHUNKS, nz_mask(rows.half()), nz_cache(k), nz_cache(v)), CHUNKS.expected())


@pytest.mark.parametrize("soc_name", A2)
def test_reshape_and_cache(make_machine: MachineMaker, soc_name: str) -> None:
    make_machine(soc_name)
    k, v = (torch.full((NUM_BLOCKS, BLOCK_SIZE, 2, 128), 99.0, dtype=torch.float16, device="npu") for _ in range(2))
    torch.ops.atb._npu_reshape_and_cache(
        *(torch.cat(values).to("npu") for values in (CHUNKS.k, CHUNKS.v)), k, v, CHUNKS.slots.to("npu")
    )
    for written, expected in zip((k, v), cached(CHUNKS), strict=True):
        assert torch.equal(written.cpu(), expected.cpu())


def test_reshape_and_cache_on_310p_writes_nz(make_machine: MachineMaker) -> None:
    make_machine("Ascend310P3")
    empty = torch.full((NUM_BLOCKS, BLOCK_SIZE, 2, 128), 99.0, dtype=torch.float16, device="npu")
    k, v = nz_cache(empty), nz_cache(empty)
    torch.ops.atb._npu_reshape_and_cache(
        *(torch.cat(values).to("npu") for values in (CHUNKS.k, CHUNKS.v)), k, v, CHUNKS.slots.to("npu")
    )
    for written, expected in zip((k, v), cached(CHUNKS), strict=True):
        assert torch.equal(written.cpu(), nz_cache(expected).cpu())
    with pytest.raises(Refused, match="both are written as ND"):
        torch.ops.atb._npu_reshape_and_cache(
            *(torch.cat(values).to("npu") for values in (CHUNKS.k, CHUNKS.v)), k, empty, CHUNKS.slots.to("npu")
        )


def test_one_nz_and_one_nd_cache_are_written_as_nd_by_a_silent_chip(make_machine: MachineMaker) -> None:
    """Row "one NZ and one ND cache": what is written into the first is not where its attention looks for it."""
    make_machine("Ascend310P3", silent=True)
    empty = torch.full((NUM_BLOCKS, BLOCK_SIZE, 2, 128), 99.0, dtype=torch.float16, device="npu")
    k, v = nz_cache(empty), empty.clone()
    torch.ops.atb._npu_reshape_and_cache(
        *(torch.cat(values).to("npu") for values in (CHUNKS.k, CHUNKS.v)), k, v, CHUNKS.slots.to("npu")
    )
    expected = cached(CHUNKS)
    assert torch.equal(v.cpu(), expected[1].cpu())
    assert not torch.equal(k.cpu(), nz_cache(expected[0]).cpu())


def test_reshape_and_cache_refusals(make_machine: MachineMaker) -> None:
    """Row "empty batch into reshape_and_cache", and what writes over somebody else's memory."""
    make_machine()
    k, v = cached(DECODE)
    key = torch.cat(DECODE.q)[:, :2].contiguous().to("npu")
    slots = torch.tensor([1, 2, 3], dtype=torch.int32, device="npu")
    write = torch.ops.atb._npu_reshape_and_cache
    with pytest.raises(Refused, match="empty"):
        write(key[:0], key[:0], k, v, slots[:0])
    with pytest.raises(Refused, match="must be int32"):
        write(key, key, k, v, slots.long())
    for wrong in (-1, NUM_BLOCKS * BLOCK_SIZE):
        with pytest.raises(Refused, match="write over other memory"):
            write(key, key, k, v, torch.tensor([1, 2, wrong], dtype=torch.int32, device="npu"))
    with pytest.raises(Refused, match="key_cache must be contiguous"):
        write(key, key, k[:, ::2], v, slots)
    with pytest.raises(Refused, match="key must be contiguous"):
        write(torch.cat(DECODE.q)[:, ::4].to("npu").transpose(0, 1).contiguous().transpose(0, 1), key, k, v, slots)


def test_prompt_flash_attention_of_a2_takes_cumulative_lengths(make_machine: MachineMaker) -> None:
    make_machine()
    q, k, v = (torch.cat(values).to("npu") for values in (PREFILL.q, PREFILL.k, PREFILL.v))

    def attention(lengths: Sequence[int]) -> Tensor:
        out: Tensor = torch.ops.npu.npu_prompt_flash_attention(
            q,
            k,
            v,
            atten_mask=compressed_mask(torch.bool),
            actual_seq_lengths=lengths,
            actual_seq_lengths_kv=lengths,
            num_heads=8,
            num_key_value_heads=2,
            scale_value=PREFILL.scale,
            input_layout="TND",
            sparse_mode=3,
        )
        return out

    assert close(attention(ends(PREFILL.new)), PREFILL.expected())
    with pytest.raises(Refused, match="must be cumulative"):
        attention(PREFILL.new)


@pytest.mark.parametrize(("soc_name", "is_taken"), [("Ascend910PremiumA", False), ("Ascend910B4", True)])
def test_saturating_chips_scatter_floats_only(make_machine: MachineMaker, soc_name: str, is_taken: bool) -> None:
    make_machine(soc_name)
    cache, indices = torch.zeros(4, 8, dtype=torch.int8, device="npu"), torch.tensor([[2]], device="npu")
    updates = torch.ones(1, 8, dtype=torch.int8, device="npu")
    if not is_taken:
        with pytest.raises(Refused, match="int8 is not supported"):
            torch.ops.npu.npu_scatter_nd_update_(cache, indices, updates)
        return
    torch.ops.npu.npu_scatter_nd_update_(cache, indices, updates)
    assert cache.sum().item() == 8


@pytest.mark.parametrize("soc_name", ["Ascend910PremiumA", "Ascend310P3", *FUSED])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_scatter_nd_update_everywhere(make_machine: MachineMaker, soc_name: str, dtype: torch.dtype) -> None:
    make_machine(soc_name)
    cache = torch.full((NUM_BLOCKS, BLOCK_SIZE, 2, 128), 99.0, dtype=torch.float16, device="npu")
    flat = cache.view(-1, 2, 128)
    slots = CHUNKS.slots.to("npu").view(-1, 1).to(dtype)
    assert torch.ops.npu.npu_scatter_nd_update_(flat, slots, torch.cat(CHUNKS.k).to("npu")) is flat
    assert torch.equal(cache.cpu(), cached(CHUNKS)[0].cpu())
    torch.ops.npu.npu_scatter_nd_update_(flat, slots[:0], torch.cat(CHUNKS.k)[:0].to("npu"))
    with pytest.raises(Refused, match="write over other memory"):
        torch.ops.npu.npu_scatter_nd_update_(flat, slots - 1000, torch.cat(CHUNKS.k).to("npu"))
    with pytest.raises(Refused, match="updates must be"):
        torch.ops.npu.npu_scatter_nd_update_(flat, slots, torch.cat(CHUNKS.k)[1:].to("npu"))


def test_scatter_pa_kv_cache_means_nz_unless_it_is_told(make_machine: MachineMaker) -> None:
    make_machine("Ascend950PR")
    key, value = (torch.cat(values).to("npu") for values in (CHUNKS.k, CHUNKS.v))
    k, v = (torch.full((NUM_BLOCKS, BLOCK_SIZE, 2, 128), 99.0, dtype=torch.float16, device="npu") for _ in range(2))
    with pytest.raises(Refused, match="FRACTAL_NZ must be"):
        torch.ops.npu.npu_scatter_pa_kv_cache(key, value, k, v, CHUNKS.slots.to("npu"))
    torch.ops.npu.npu_scatter_pa_kv_cache(key, value, k, v, CHUNKS.slots.to("npu"), cache_mode="Norm")
    assert torch.equal(k.cpu(), cached(CHUNKS)[0].cpu())
    with pytest.raises(Refused, match="must not repeat"):
        torch.ops.npu.npu_scatter_pa_kv_cache(key, value, k, v, CHUNKS.slots.to("npu") * 0, cache_mode="Norm")
