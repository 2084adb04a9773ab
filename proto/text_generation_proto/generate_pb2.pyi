from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoResponse(_message.Message):
    __slots__ = ("protocol_version", "server_version", "model_id", "model_type", "dtype", "device_type", "device_name", "rank", "world_size", "sockets", "vocab_size", "max_position_embeddings", "model_sha", "speculate", "self_check", "step_sockets")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_TYPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SOCKETS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITION_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    MODEL_SHA_FIELD_NUMBER: _ClassVar[int]
    SPECULATE_FIELD_NUMBER: _ClassVar[int]
    SELF_CHECK_FIELD_NUMBER: _ClassVar[int]
    STEP_SOCKETS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    server_version: str
    model_id: str
    model_type: str
    dtype: str
    device_type: str
    device_name: str
    rank: int
    world_size: int
    sockets: _containers.RepeatedScalarFieldContainer[str]
    vocab_size: int
    max_position_embeddings: int
    model_sha: str
    speculate: int
    self_check: SelfCheck
    step_sockets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol_version: _Optional[int] = ..., server_version: _Optional[str] = ..., model_id: _Optional[str] = ..., model_type: _Optional[str] = ..., dtype: _Optional[str] = ..., device_type: _Optional[str] = ..., device_name: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., sockets: _Optional[_Iterable[str]] = ..., vocab_size: _Optional[int] = ..., max_position_embeddings: _Optional[int] = ..., model_sha: _Optional[str] = ..., speculate: _Optional[int] = ..., self_check: _Optional[_Union[SelfCheck, _Mapping]] = ..., step_sockets: _Optional[_Iterable[str]] = ...) -> None: ...

class SelfCheck(_message.Message):
    __slots__ = ("num_ops", "num_samples", "num_model_parts", "worst_error", "seconds", "checked_at", "fallbacks")
    NUM_OPS_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    NUM_MODEL_PARTS_FIELD_NUMBER: _ClassVar[int]
    WORST_ERROR_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    CHECKED_AT_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    num_ops: int
    num_samples: int
    num_model_parts: int
    worst_error: float
    seconds: float
    checked_at: str
    fallbacks: _containers.RepeatedCompositeFieldContainer[Fallback]
    def __init__(self, num_ops: _Optional[int] = ..., num_samples: _Optional[int] = ..., num_model_parts: _Optional[int] = ..., worst_error: _Optional[float] = ..., seconds: _Optional[float] = ..., checked_at: _Optional[str] = ..., fallbacks: _Optional[_Iterable[_Union[Fallback, _Mapping]]] = ...) -> None: ...

class Fallback(_message.Message):
    __slots__ = ("op", "candidate", "reason", "used")
    OP_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    op: str
    candidate: str
    reason: str
    used: str
    def __init__(self, op: _Optional[str] = ..., candidate: _Optional[str] = ..., reason: _Optional[str] = ..., used: _Optional[str] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthResponse(_message.Message):
    __slots__ = ("num_steps",)
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    num_steps: int
    def __init__(self, num_steps: _Optional[int] = ...) -> None: ...

class WarmupRequest(_message.Message):
    __slots__ = ("max_batch_prefill_tokens", "max_sequences", "max_total_tokens", "max_batch_total_tokens")
    MAX_BATCH_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_batch_prefill_tokens: int
    max_sequences: int
    max_total_tokens: int
    max_batch_total_tokens: int
    def __init__(self, max_batch_prefill_tokens: _Optional[int] = ..., max_sequences: _Optional[int] = ..., max_total_tokens: _Optional[int] = ..., max_batch_total_tokens: _Optional[int] = ...) -> None: ...

class WarmupResponse(_message.Message):
    __slots__ = ("num_blocks", "block_size", "max_batch_prefill_tokens", "max_total_tokens", "free_bytes", "kv_cache_bytes", "max_guessing_tokens")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_GUESSING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    block_size: int
    max_batch_prefill_tokens: int
    max_total_tokens: int
    free_bytes: int
    kv_cache_bytes: int
    max_guessing_tokens: int
    def __init__(self, num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., max_batch_prefill_tokens: _Optional[int] = ..., max_total_tokens: _Optional[int] = ..., free_bytes: _Optional[int] = ..., kv_cache_bytes: _Optional[int] = ..., max_guessing_tokens: _Optional[int] = ...) -> None: ...

class SamplingParameters(_message.Message):
    __slots__ = ("do_sample", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "frequency_penalty", "watermark", "seed", "presence_penalty", "count_penalty", "bias_token_ids", "bias_values")
    DO_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    COUNT_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BIAS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BIAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    typical_p: float
    repetition_penalty: float
    frequency_penalty: float
    watermark: bool
    seed: int
    presence_penalty: float
    count_penalty: float
    bias_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bias_values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, do_sample: bool = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., watermark: bool = ..., seed: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., count_penalty: _Optional[float] = ..., bias_token_ids: _Optional[_Iterable[int]] = ..., bias_values: _Optional[_Iterable[float]] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("table_index", "token_ids", "num_prompt_tokens", "num_computed_tokens", "block_ids", "sampling", "top_n_tokens", "prompt_logprobs")
    TABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TOP_N_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    table_index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: SamplingParameters
    top_n_tokens: int
    prompt_logprobs: bool
    def __init__(self, table_index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., block_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[SamplingParameters, _Mapping]] = ..., top_n_tokens: _Optional[int] = ..., prompt_logprobs: bool = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("step_id", "release", "admit", "append_table_index", "append_block_id", "row_table_index", "row_num_tokens", "masked_rows", "masks", "guess_rows", "guess_counts", "guess_token_ids")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    ADMIT_FIELD_NUMBER: _ClassVar[int]
    APPEND_TABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPEND_BLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    ROW_TABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROW_NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MASKED_ROWS_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    GUESS_ROWS_FIELD_NUMBER: _ClassVar[int]
    GUESS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    GUESS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    release: _containers.RepeatedScalarFieldContainer[int]
    admit: _containers.RepeatedCompositeFieldContainer[Admission]
    append_table_index: _containers.RepeatedScalarFieldContainer[int]
    append_block_id: _containers.RepeatedScalarFieldContainer[int]
    row_table_index: _containers.RepeatedScalarFieldContainer[int]
    row_num_tokens: _containers.RepeatedScalarFieldContainer[int]
    masked_rows: _containers.RepeatedScalarFieldContainer[int]
    masks: bytes
    guess_rows: _containers.RepeatedScalarFieldContainer[int]
    guess_counts: _containers.RepeatedScalarFieldContainer[int]
    guess_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, step_id: _Optional[int] = ..., release: _Optional[_Iterable[int]] = ..., admit: _Optional[_Iterable[_Union[Admission, _Mapping]]] = ..., append_table_index: _Optional[_Iterable[int]] = ..., append_block_id: _Optional[_Iterable[int]] = ..., row_table_index: _Optional[_Iterable[int]] = ..., row_num_tokens: _Optional[_Iterable[int]] = ..., masked_rows: _Optional[_Iterable[int]] = ..., masks: _Optional[bytes] = ..., guess_rows: _Optional[_Iterable[int]] = ..., guess_counts: _Optional[_Iterable[int]] = ..., guess_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class StepResponse(_message.Message):
    __slots__ = ("step_id", "token_ids", "logprobs", "top_counts", "top_token_ids", "top_logprobs", "prompt_logprobs", "forward_ns", "sample_ns", "row_num_sampled", "faults")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_NS_FIELD_NUMBER: _ClassVar[int]
    ROW_NUM_SAMPLED_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    top_counts: _containers.RepeatedScalarFieldContainer[int]
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    forward_ns: int
    sample_ns: int
    row_num_sampled: _containers.RepeatedScalarFieldContainer[int]
    faults: _containers.RepeatedCompositeFieldContainer[Fault]
    def __init__(self, step_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., top_counts: _Optional[_Iterable[int]] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ..., forward_ns: _Optional[int] = ..., sample_ns: _Optional[int] = ..., row_num_sampled: _Optional[_Iterable[int]] = ..., faults: _Optional[_Iterable[_Union[Fault, _Mapping]]] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("table_index", "message")
    TABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    table_index: int
    message: str
    def __init__(self, table_index: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("table_index", "first_position", "logprobs")
    TABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    table_index: int
    first_position: int
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, table_index: _Optional[int] = ..., first_position: _Optional[int] = ..., logprobs: _Optional[_Iterable[float]] = ...) -> None: ...
