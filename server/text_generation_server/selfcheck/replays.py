"""A captured decode step compared with the same step op by op, with other lengths than it was captured with.

A graph keeps what the host told an op at capture, lengths of rows among it, unless that is updated before each replay;
a chip gives no error where it is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from text_generation_kernels.checks.comparing import TOLERANCE, row_error
from text_generation_kernels.interface import CapturedStep, KVCache, StepInputs, StepMetadata
from text_generation_server.models.causal_lm import CausalLM

# Tokens that the rows have been given before; each step sees some of them, first more, then fewer.
_NUM_TOKENS = 12
_LENGTHS = ((12, 7), (5, 11), (3, 2))


def wrong_replay(model: CausalLM, captured: CapturedStep, caches: Sequence[KVCache], block_size: int) -> str | None:
    """What is wrong with replays, on this rank, in one line; None: they are right.

    Writes into the first blocks of the caches, which are to be empty. All ranks call it.

    Args:
        caches: that the step was captured with.
    """
    device, ops = model.device.torch_device, model.device.ops
    num_blocks = caches[0].k.shape[0] - ops.spare_kv_blocks
    blocks_of_row = -(-_NUM_TOKENS // block_size)
    num_rows = min(len(_LENGTHS[0]), captured.max_sampled, num_blocks // blocks_of_row)
    if num_rows < 1 or model.max_positions < _NUM_TOKENS:
        return None
    tables = torch.arange(num_rows * blocks_of_row, dtype=torch.int32).view(num_rows, blocks_of_row).to(device)
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(model.config.vocab_size, (num_rows, _NUM_TOKENS), generator=generator)

    def slots(row: int, positions: Tensor) -> Tensor:
        first = row * blocks_of_row
        return (first + positions // block_size) * block_size + positions % block_size

    positions = torch.arange(_NUM_TOKENS)
    prompts = StepMetadata(
        positions=positions.repeat(num_rows).to(device),
        slot_mapping=torch.cat([slots(row, positions) for row in range(num_rows)]).to(device, torch.int32),
        block_tables=tables,
        cu_seqlens_q=tuple(range(0, (num_rows + 1) * _NUM_TOKENS, _NUM_TOKENS)),
        kv_lens=(_NUM_TOKENS,) * num_rows,
    )
    model.forward(token_ids.flatten().to(device), prompts, caches)
    for lengths in _LENGTHS:
        last = torch.tensor(lengths[:num_rows]) - 1
        decode = StepMetadata(
            positions=last.to(device),
            slot_mapping=torch.cat([slots(row, last[row : row + 1]) for row in range(num_rows)]).to(
                device, torch.int32
            ),
            block_tables=tables,
            cu_seqlens_q=tuple(range(num_rows + 1)),
            kv_lens=lengths[:num_rows],
        )
        inputs = StepInputs(
            token_ids.gather(1, last[:, None]).flatten().to(device), decode, torch.arange(num_rows).to(device)
        )
        if not captured.fits(inputs):
            return None
        expected = model.sampled_logits(inputs, caches).cpu()
        error = row_error(captured(inputs).cpu(), expected)
        if error > TOLERANCE[ops.activation_dtype]:
            rows = " and ".join(map(str, lengths[:num_rows]))
            return f"logits of rows of {rows} tokens are off by {error:.2g} of their size"
    return None
