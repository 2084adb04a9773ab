"""Plans to bytes and answers to records: the one place in the router that knows the wire's messages of a step."""

from __future__ import annotations

from text_generation_proto import generate_pb2 as pb
from text_generation_router.scheduling.plan import Admission, StepPlan, StepResult
from text_generation_router.scheduling.request import SamplingParameters, TokenNumbers


def encode_plan(plan: StepPlan) -> bytes:
    """A serialized StepRequest. Rows of one token each, the usual decode step, need no `row_num_tokens`."""
    message = pb.StepRequest(
        step_id=plan.step_id,
        release=plan.release,
        admit=[_admission(admission) for admission in plan.admit],
        append_table_index=[table_index for table_index, _ in plan.append],
        append_block_id=[block_id for _, block_id in plan.append],
        row_table_index=[table_index for table_index, _ in plan.rows],
    )
    if any(num_tokens != 1 for _, num_tokens in plan.rows):
        message.row_num_tokens.extend(num_tokens for _, num_tokens in plan.rows)
    if plan.masks:
        message.masked_rows.extend(place for place, _ in plan.masks)
        message.masks = b"".join(mask for _, mask in plan.masks)
    for place, guesses in plan.guesses:
        message.guess_rows.append(place)
        message.guess_counts.append(len(guesses))
        message.guess_token_ids.extend(guesses)
    return message.SerializeToString()


def _admission(admission: Admission) -> pb.Admission:
    return pb.Admission(
        table_index=admission.table_index,
        token_ids=admission.token_ids,
        num_prompt_tokens=admission.num_prompt_tokens,
        num_computed_tokens=admission.num_computed_tokens,
        block_ids=admission.block_ids,
        sampling=_sampling(admission.sampling),
        top_n_tokens=admission.top_n_tokens,
        prompt_logprobs=admission.prompt_logprobs,
    )


def _sampling(parameters: SamplingParameters) -> pb.SamplingParameters:
    return pb.SamplingParameters(
        do_sample=parameters.do_sample,
        temperature=parameters.temperature,
        top_k=parameters.top_k,
        top_p=parameters.top_p,
        typical_p=parameters.typical_p,
        repetition_penalty=parameters.repetition_penalty,
        frequency_penalty=parameters.frequency_penalty,
        watermark=parameters.watermark,
        seed=parameters.seed,
        presence_penalty=parameters.presence_penalty,
        count_penalty=parameters.count_penalty,
        bias_token_ids=[token_id for token_id, _ in parameters.logit_bias],
        bias_values=[value for _, value in parameters.logit_bias],
    )


def decode_result(message: pb.StepResponse) -> StepResult:
    top_tokens: list[tuple[tuple[int, float], ...]] = []
    if message.top_counts:
        pairs = list(zip(message.top_token_ids, message.top_logprobs, strict=True))
        start = 0
        for count in message.top_counts:
            top_tokens.append(tuple(pairs[start : start + count]))
            start += count
    columns = [getattr(message, f"{name}s") for name in TokenNumbers._fields]
    return StepResult(
        step_id=message.step_id,
        token_ids=tuple(message.token_ids),
        numbers=tuple(map(TokenNumbers, *columns)),
        top_tokens=tuple(top_tokens),
        prompt_logprobs={row.table_index: (row.first_position, tuple(row.logprobs)) for row in message.prompt_logprobs},
        forward_ns=message.forward_ns,
        sample_ns=message.sample_ns,
        row_num_sampled=tuple(message.row_num_sampled),
        faults={fault.table_index: fault.message for fault in message.faults},
    )
