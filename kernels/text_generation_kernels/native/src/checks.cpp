#include "checks.h"

#include <stddef.h>

#include "errors.h"

namespace tgk {
namespace {

typedef long long Long;  // for %lld

int32_t check_linear(const TgkLinear& a) {
  return a.x_parts == 2 || a.x_parts == 3 ? 0 : fail("linear: x_parts is %d; use 2 or 3", a.x_parts);
}

int32_t check_ids(const char* op, const int64_t* ids, int64_t count, int64_t limit) {
  if (count && !ids) return fail("%s: the step has no ids", op);
  for (int64_t i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= limit)
      return fail("%s: id %lld at %lld is outside the table's %lld rows", op, (Long)ids[i], (Long)i, (Long)limit);
  return 0;
}

int32_t check_embedding(const TgkEmbedding& a, int64_t rows, const TgkStep& step) {
  if (a.ids == TGK_TOKEN_IDS) return check_ids("embedding", step.token_ids, rows, a.table_rows);
  if (a.ids == TGK_POSITIONS) return check_ids("embedding", step.positions, rows, a.table_rows);
  // Rows of the step's own tokens.
  return check_ids("embedding", step.sampled, rows, a.table_rows < step.num_tokens ? a.table_rows : step.num_tokens);
}

int32_t check_store(const TgkStoreKV& a, const TgkStep& step) {
  const int64_t num_slots = a.cache.num_blocks * a.cache.block_size;
  if (step.num_tokens && !step.slot_mapping) return fail("store_kv: the step has no slot_mapping");
  for (int64_t i = 0; i < step.num_tokens; i++)
    if (step.slot_mapping[i] < -1 || step.slot_mapping[i] >= num_slots)
      return fail("store_kv: slot %d of token %lld is outside the cache's %lld", step.slot_mapping[i], (Long)i,
                  (Long)num_slots);
  return 0;
}

int32_t check_attention(const TgkAttention& a, const TgkStep& step) {
  if (!step.num_tokens) return 0;
  if (!step.cu_seqlens_q || !step.kv_lens || !step.block_tables) return fail("attention: the step has no rows");
  if (step.cu_seqlens_q[0] != 0 || step.cu_seqlens_q[step.num_rows] != step.num_tokens)
    return fail("attention: cu_seqlens_q goes from %lld to %lld for %lld tokens", (Long)step.cu_seqlens_q[0],
                (Long)step.cu_seqlens_q[step.num_rows], (Long)step.num_tokens);
  for (int64_t row = 0; row < step.num_rows; row++) {
    const int64_t new_tokens = step.cu_seqlens_q[row + 1] - step.cu_seqlens_q[row], kv_len = step.kv_lens[row];
    const int64_t blocks = (kv_len + a.cache.block_size - 1) / a.cache.block_size;
    if (new_tokens < 0 || kv_len < new_tokens)
      return fail("attention: row %lld has %lld new tokens and kv_len %lld", (Long)row, (Long)new_tokens, (Long)kv_len);
    if (blocks > step.max_blocks)
      return fail("attention: row %lld needs %lld blocks, block_tables has %lld columns", (Long)row, (Long)blocks,
                  (Long)step.max_blocks);
    for (int64_t i = 0; i < blocks; i++) {
      const int32_t block = step.block_tables[row * step.max_blocks + i];
      if (block < 0 || block >= a.cache.num_blocks)
        return fail("attention: block %d of row %lld is outside the cache's %lld", block, (Long)row,
                    (Long)a.cache.num_blocks);
    }
  }
  return 0;
}

int32_t check_vocabulary(const char* op, int64_t vocab_size) {
  return vocab_size > 0 ? 0 : fail("%s: a vocabulary of %lld", op, (Long)vocab_size);
}

int32_t check_top_k(const TgkTopK& a, int64_t rows, const TgkStep& step) {
  if (a.k < 1 || a.k > a.vocab_size) return fail("top_k: the %lld best of %lld", (Long)a.k, (Long)a.vocab_size);
  return check_ids("top_k", step.token_ids, rows, a.num_logits);
}

int32_t check_draw(const TgkDraw& a, int64_t rows, const TgkStep& step) {
  if (check_vocabulary("draw", a.vocab_size)) return -1;
  for (int64_t i = 0; i < rows; i++)
    if (!(a.filters[i].temperature > 0)) return fail("draw: row %lld has no temperature above 0", (Long)i);
  return check_ids("draw", step.token_ids, rows, a.num_logits);
}

}  // namespace

int32_t check(const TgkInstruction& instruction, const TgkStep& step) {
  const int64_t rows = instruction.rows == TGK_TOKENS ? step.num_tokens : step.num_sampled;
  if (step.num_tokens < 0 || step.num_sampled < 0 || step.num_rows < 0) return fail("a step with a negative count");
  switch (instruction.op) {
    case TGK_LINEAR:
      return check_linear(instruction.linear);
    case TGK_RMS_NORM:
    case TGK_ADD_RMS_NORM:
    case TGK_ROTARY:
    case TGK_SILU_AND_MUL:
      return 0;
    case TGK_EMBEDDING:
      return check_embedding(instruction.embedding, rows, step);
    case TGK_STORE_KV:
      return check_store(instruction.store_kv, step);
    case TGK_ATTENTION:
      return check_attention(instruction.attention, step);
    case TGK_MOST_LIKELY:
      return check_vocabulary("most_likely", instruction.most_likely.vocab_size);
    case TGK_TOP_K:
      return check_top_k(instruction.top_k, rows, step);
    case TGK_DRAW:
      return check_draw(instruction.draw, rows, step);
  }
  return fail("op %d is unknown", instruction.op);
}

}  // namespace tgk
