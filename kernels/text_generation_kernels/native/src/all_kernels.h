// Makes the ops' table for the instruction set TGK_ISA. Included once by each kernels_*.cpp.
#pragma once

#include "attention.h"
#include "kernels.h"
#include "linear.h"
#include "rowwise.h"
#include "sampling.h"

namespace tgk {
namespace TGK_ISA {

static const int64_t* ids_of(const TgkEmbedding& a, const TgkStep& step) {
  return a.ids == TGK_TOKEN_IDS ? step.token_ids : a.ids == TGK_POSITIONS ? step.positions : step.sampled;
}

static int64_t scratch_bytes(const TgkInstruction& instruction, const TgkStep& step, int) {
  switch (instruction.op) {
    case TGK_ATTENTION:
      return attention_scratch_bytes(instruction.attention, step);
    case TGK_TOP_K:
      return top_k_scratch_bytes(instruction.top_k);
    case TGK_DRAW:
      return DrawScratch::bytes(instruction.draw.vocab_size);
  }
  return 0;
}

static int64_t num_rows_of(const TgkInstruction& instruction, const TgkStep& step) {
  return instruction.rows == TGK_TOKENS ? step.num_tokens : step.num_sampled;
}

static int64_t shared_bytes(const TgkInstruction& instruction, const TgkStep& step, int num_threads) {
  switch (instruction.op) {
    case TGK_ATTENTION:
      return attention_shared_bytes(instruction.attention, step, num_threads);
    case TGK_MOST_LIKELY:
      return most_likely_shared_bytes(instruction.most_likely, num_rows_of(instruction, step));
  }
  return 0;
}

static void run(const TgkInstruction& instruction, const TgkStep& step, Team& team, int thread) {
  const int64_t num_rows = num_rows_of(instruction, step);
  const Span rows = part_of(num_rows, thread, team.size());
  switch (instruction.op) {
    case TGK_LINEAR:
      return linear(instruction.linear, num_rows, thread, team.size());
    case TGK_EMBEDDING:
      return embedding(instruction.embedding, ids_of(instruction.embedding, step), rows);
    case TGK_RMS_NORM:
    case TGK_ADD_RMS_NORM:
      return norm(instruction.norm, rows);
    case TGK_ROTARY:
      return rotary(instruction.rotary, rows);
    case TGK_SILU_AND_MUL:
      return silu_and_mul(instruction.silu, num_rows, thread, team.size());
    case TGK_STORE_KV:
      return store_kv(instruction.store_kv, step.slot_mapping, rows);
    case TGK_ATTENTION:
      return attention(instruction.attention, step, team, thread);
    case TGK_MOST_LIKELY:
      return most_likely(instruction.most_likely, num_rows, team, thread, team.scratch(team.size(), 0));
    case TGK_TOP_K:
      return top_k(instruction.top_k, step.token_ids, rows, team.scratch(thread, 0));
    case TGK_DRAW:
      return draw(instruction.draw, step.token_ids, rows, team.scratch(thread, 0));
  }
}

}  // namespace TGK_ISA
}  // namespace tgk

#define TGK_KERNELS(name, runs_here) \
  {name, runs_here, TGK_ISA::run, TGK_ISA::scratch_bytes, TGK_ISA::shared_bytes}
