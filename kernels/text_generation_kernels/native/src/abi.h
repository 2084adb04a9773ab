// The library's C interface: what Python fills in, by the same names, in native/library.py. Plain data and pointers.
//
// An op is one Instruction. A model step is a list of them, run by one call; run alone or in a list, an op is the same
// code. Counts that change from step to step are in Step, everything else is in the instructions. Sizes are in elements
// and strides in elements between rows, unless a name says bytes.
#pragma once

#include <stdint.h>

#define TGK_EXPORT __attribute__((visibility("default")))

extern "C" {

enum TgkFormat : int32_t { TGK_F32 = 0, TGK_BF16 = 1, TGK_F16 = 2, TGK_I8 = 3 };

enum TgkOp : int32_t {
  TGK_LINEAR = 0,
  TGK_EMBEDDING = 1,
  TGK_RMS_NORM = 2,
  TGK_ADD_RMS_NORM = 3,
  TGK_ROTARY = 4,
  TGK_SILU_AND_MUL = 5,
  TGK_STORE_KV = 6,
  TGK_ATTENTION = 7,
  TGK_MOST_LIKELY = 8,
  TGK_TOP_K = 9,
  TGK_DRAW = 10,
};

// Which count of the step an instruction's rows are.
enum TgkRows : int32_t { TGK_TOKENS = 0, TGK_SAMPLED = 1 };

// Where an embedding's ids are found in the step.
enum TgkIds : int32_t { TGK_TOKEN_IDS = 0, TGK_POSITIONS = 1, TGK_SAMPLED_TOKENS = 2 };

struct TgkLinear {
  const float* x;  // [rows, in_features]
  int64_t x_stride;
  float* out;  // [rows, out_features]
  int64_t out_stride;
  const void* weight;   // panels of sixteen columns
  const float* scales;  // I8: [panels][groups][16]; else null
  const float* bias;    // [out_features] or null
  int64_t out_features;
  int64_t in_features;
  int64_t group_size;   // I8: input features that share a scale
  int32_t format;
  int32_t x_parts;  // of an x that tiles multiply: 2, which hold 17 bits of it, or 3, which hold all. Others ignore it
};

struct TgkEmbedding {
  const void* table;  // [table_rows, width], F32, BF16 or F16: plain rows, or packed as a linear weight
  int64_t table_stride;  // of plain rows
  int64_t table_rows;
  int64_t width;
  float* out;  // [rows, width]
  int64_t out_stride;
  int32_t format;
  int32_t ids;        // TgkIds
  int32_t is_packed;  // 0 or 1
};

struct TgkNorm {
  const float* x;  // [rows, groups, width]
  int64_t x_stride;
  int64_t x_group_stride;
  float* residual;  // ADD_RMS_NORM: [rows, width], becomes x + residual; else null
  int64_t residual_stride;
  const float* weight;  // [width]
  float* out;           // [rows, groups, width], groups next to each other
  int64_t out_stride;
  int64_t groups;
  int64_t width;
  float eps;
};

struct TgkRotary {
  float* q;  // [rows, num_heads, head_dim], in place
  int64_t q_stride;
  float* k;  // [rows, num_kv_heads, head_dim], in place
  int64_t k_stride;
  const float* cos;  // [rows, half]
  int64_t cos_stride;
  const float* sin;
  int64_t sin_stride;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t half;
};

struct TgkSilu {
  const float* x;  // [rows, 2 * width]: gate, then up
  int64_t x_stride;
  float* out;  // [rows, width]
  int64_t out_stride;
  int64_t width;
};

// Both caches: [num_blocks][num_kv_heads][block_size / 16] pieces of sixteen tokens; a piece is head_dim (padded to a
// multiple of 16) times sixteen elements, in panels as formats.h says.
struct TgkCache {
  void* k;
  void* v;
  int64_t num_blocks;
  int64_t block_size;
  int64_t num_kv_heads;
  int64_t head_dim;
  int32_t format;  // F32 or BF16
};

struct TgkStoreKV {
  const float* k;  // [rows, num_kv_heads, head_dim]
  int64_t k_stride;
  const float* v;
  int64_t v_stride;
  TgkCache cache;
};

struct TgkAttention {
  const float* q;  // [rows, num_heads, head_dim]
  int64_t q_stride;
  float* out;  // the same
  int64_t out_stride;
  TgkCache cache;
  int64_t num_heads;
  float scale;
};

// The rest choose tokens. A list may end with MOST_LIKELY; the others are run by themselves.
struct TgkMostLikely {
  const float* logits;  // [rows, vocab_size]
  int64_t stride;
  int64_t vocab_size;
  int64_t* ids;     // [rows]
  float* values;    // [rows]
  float* log_sums;  // [rows]
};

// Rows of `logits` are picked by the step's token_ids here and below.
struct TgkTopK {
  const float* logits;  // [num_logits, vocab_size]
  int64_t stride;
  int64_t num_logits;
  int64_t vocab_size;
  int64_t k;
  float* values;  // [rows, k]
  int64_t* ids;   // [rows, k]
};

struct TgkFilters {
  double top_p;      // 1: off
  double typical_p;  // 1: off
  double uniform;    // in [0, 1)
  int64_t top_k;     // 0: off
  float temperature;
};

struct TgkDraw {
  const float* logits;  // [num_logits, vocab_size]
  int64_t stride;
  int64_t num_logits;
  int64_t vocab_size;
  const TgkFilters* filters;  // [rows]
  int64_t* ids;               // [rows]
};

struct TgkInstruction {
  int32_t op;    // TgkOp
  int32_t rows;  // TgkRows
  union {
    TgkLinear linear;
    TgkEmbedding embedding;
    TgkNorm norm;
    TgkRotary rotary;
    TgkSilu silu;
    TgkStoreKV store_kv;
    TgkAttention attention;
    TgkMostLikely most_likely;
    TgkTopK top_k;
    TgkDraw draw;
  };
};

struct TgkStep {
  int64_t num_tokens;
  int64_t num_sampled;
  int64_t num_rows;
  int64_t max_blocks;           // of a row in block_tables
  const int64_t* token_ids;     // [num_tokens]
  const int64_t* positions;     // [num_tokens]
  const int64_t* sampled;       // [num_sampled]: tokens of the step
  const int32_t* slot_mapping;  // [num_tokens], -1: nothing is written
  const int32_t* block_tables;  // [num_rows, max_blocks]
  const int64_t* cu_seqlens_q;  // [num_rows + 1]
  const int64_t* kv_lens;       // [num_rows]
};

// Digest of the sources the library was built from, so that a stale one is noticed.
TGK_EXPORT const char* tgk_source_digest(void);
// Size of TgkInstruction and of TgkStep: a second check that both sides mean the same structs.
TGK_EXPORT int64_t tgk_instruction_bytes(void);
TGK_EXPORT int64_t tgk_step_bytes(void);
// The instruction sets that this library has and this processor can run, best first, separated by spaces.
TGK_EXPORT const char* tgk_instruction_sets(void);

// Threads that run steps together, and the instruction set they use. Null if the set cannot be run here.
TGK_EXPORT void* tgk_team_new(int32_t num_threads, const char* instruction_set);
TGK_EXPORT void tgk_team_free(void* team);

// Bytes of a weight in panels.
TGK_EXPORT int64_t tgk_packed_bytes(int64_t out_features, int64_t in_features, int32_t format);
// Writes `rows` more rows of a weight, from row `first` on (a multiple of 16, and `rows` too unless they are the last).
// The source has the format F32, BF16 or F16 and is contiguous; 16-bit floats go to their own format or to F32.
TGK_EXPORT int32_t tgk_pack(const void* source, int32_t source_format, int64_t rows, int64_t in_features, void* panels,
                 int32_t format);
// The same for int8: source is [rows, in_features] int8.
TGK_EXPORT int32_t tgk_pack_i8(const int8_t* source, int64_t rows, int64_t in_features, void* panels);

// Runs instructions in order over one step. 0, or -1 with the reason in tgk_error(): nothing has been written then.
TGK_EXPORT int32_t tgk_run(void* team, const TgkInstruction* instructions, int64_t count, const TgkStep* step);

TGK_EXPORT const char* tgk_error(void);
}
