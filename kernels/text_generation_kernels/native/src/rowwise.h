// Ops whose tokens do not meet: embedding, norms, rotary positions, silu, and the way into the cache.
//
// Threads share out rows; the pointwise ones also split a row, so that a single one does not leave threads idle. A prompt's
// rows come from beyond the second cache: while one is computed the thread's next is fetched (a fifth less time, Sapphire
// Rapids).
#pragma once

#include "abi.h"
#include "cache.h"
#include "vector.h"

namespace tgk {
namespace TGK_ISA {

TGK_INLINE void copy_row(const char* row, int32_t format, int64_t width, float* out) {
  const int64_t element = format == TGK_F32 ? 4 : 2;
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const char* p = row + i * element;
    store(out + i, format == TGK_F32 ? load((const float*)p) : format == TGK_BF16 ? load_bf16(p) : load_f16(p));
  }
  if (i < width) {
    char rest[kLanes * 4] = {0};
    memcpy(rest, row + i * element, (width - i) * element);
    const Vec lanes = format == TGK_F32 ? load((const float*)rest) : format == TGK_BF16 ? load_bf16(rest) : load_f16(rest);
    store_first(out + i, lanes, (int)(width - i));
  }
}

// Row `id` of a packed table: column id % 16 of its panel.
template <class Format, class Element>
TGK_INLINE void copy_column(const TgkEmbedding& a, int64_t id, float* out) {
  const Element* panel = (const Element*)((const char*)a.table + id / kLanes * panel_bytes<Format>(a.width));
  Element gathered[kLanes] = {0};
  for (int64_t first = 0; first < a.width; first += kLanes) {
    const int count = (int)smaller(kLanes, a.width - first);
    for (int i = 0; i < count; i++) {
      const int64_t k = first + i;
      gathered[i] = panel[(k / Format::kUnit * kLanes + id % kLanes) * Format::kUnit + k % Format::kUnit];
    }
    copy_row((const char*)gathered, a.format, count, out + first);
  }
}

void embedding(const TgkEmbedding& a, const int64_t* ids, Span rows) {
  const int64_t element = a.format == TGK_F32 ? 4 : 2;
  for (int64_t row = rows.begin; row < rows.end; row++) {
    float* out = a.out + row * a.out_stride;
    if (!a.is_packed)
      copy_row((const char*)a.table + ids[row] * a.table_stride * element, a.format, a.width, out);
    else if (a.format == TGK_F32)
      copy_column<PanelF32, uint32_t>(a, ids[row], out);
    else if (a.format == TGK_BF16)
      copy_column<PanelBF16, uint16_t>(a, ids[row], out);
    else
      copy_column<PanelF16, uint16_t>(a, ids[row], out);
  }
}

// One vector of `width`, after adding it to `residual` where there is one. The next to come lie so far on, 0 for none.
// `out` may be x.
TGK_INLINE void norm_one(const float* x, int64_t to_next_x, float* residual, int64_t to_next_residual,
                         const float* weight, float* out, int64_t width, float eps) {
  const int64_t whole = width / kLanes * kLanes;
  const int rest = (int)(width - whole);
  Vec squares = zero();
  for (int64_t i = 0; i < whole; i += kLanes) {
    Vec v = load(x + i);
    prefetch(x + to_next_x + i);
    if (residual) {
      prefetch(residual + to_next_residual + i);
      v = add(v, load(residual + i));
      store(residual + i, v);
    }
    squares = fma(v, v, squares);
  }
  if (rest) {
    Vec v = load_first(x + whole, rest);
    if (residual) {
      v = add(v, load_first(residual + whole, rest));
      store_first(residual + whole, v, rest);
    }
    squares = fma(v, v, squares);
  }
  const Vec factor = splat(1.0f / __builtin_sqrtf(sum_of_lanes(squares) / (float)width + eps));
  const float* from = residual ? residual : x;
  for (int64_t i = 0; i < whole; i += kLanes) store(out + i, mul(mul(load(from + i), factor), load(weight + i)));
  if (rest)
    store_first(out + whole, mul(mul(load_first(from + whole, rest), factor), load_first(weight + whole, rest)), rest);
}

void norm(const TgkNorm& a, Span rows) {
  for (int64_t row = rows.begin; row < rows.end; row++) {
    const int64_t next = row + 1 < rows.end;
    for (int64_t group = 0; group < a.groups; group++)
      norm_one(a.x + row * a.x_stride + group * a.x_group_stride, next * a.x_stride,
               a.residual ? a.residual + row * a.residual_stride : nullptr, next * a.residual_stride, a.weight,
               a.out + row * a.out_stride + group * a.width, a.width, a.eps);
  }
}

TGK_INLINE void rotate_head(float* head, int64_t to_next, const float* cos, const float* sin, int64_t half) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    prefetch(head + to_next + i);
    prefetch(head + to_next + half + i);
    const Vec first = load(head + i), second = load(head + half + i), c = load(cos + i), s = load(sin + i);
    store(head + i, sub(mul(first, c), mul(second, s)));
    store(head + half + i, add(mul(second, c), mul(first, s)));
  }
  for (; i < half; i++) {
    const float first = head[i], second = head[half + i];
    head[i] = first * cos[i] - second * sin[i];
    head[half + i] = second * cos[i] + first * sin[i];
  }
}

void rotary(const TgkRotary& a, Span rows) {
  for (int64_t row = rows.begin; row < rows.end; row++) {
    const float *cos = a.cos + row * a.cos_stride, *sin = a.sin + row * a.sin_stride;
    const int64_t next = row + 1 < rows.end;
    for (int64_t head = 0; head < a.num_heads; head++)
      rotate_head(a.q + row * a.q_stride + head * a.head_dim, next * a.q_stride, cos, sin, a.half);
    for (int64_t head = 0; head < a.num_kv_heads; head++)
      rotate_head(a.k + row * a.k_stride + head * a.head_dim, next * a.k_stride, cos, sin, a.half);
  }
}

TGK_INLINE Vec silu(Vec x) { return div(x, add(splat(1.0f), exponential(sub(zero(), x)))); }

// The next gate and up to come lie so far on, 0 for none. `out` may be the gate.
TGK_INLINE void silu_and_mul_row(const float* gate, const float* up, int64_t to_next, float* out, int64_t size) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    prefetch(gate + to_next + i);
    prefetch(up + to_next + i);
    store(out + i, mul(silu(load(gate + i)), load(up + i)));
  }
  const int rest = (int)(size - i);
  if (rest) store_first(out + i, mul(silu(load_first(gate + i, rest)), load_first(up + i, rest)), rest);
}

// Items are pieces of kSiluPiece columns of a row.
constexpr int64_t kSiluPiece = 256;

void silu_and_mul(const TgkSilu& a, int64_t num_rows, int thread, int num_threads) {
  const int64_t pieces = ceil_div(a.width, kSiluPiece);
  const Span items = part_of(num_rows * pieces, thread, num_threads);
  for (int64_t item = items.begin; item < items.end; item++) {
    const int64_t row = item / pieces, first = item % pieces * kSiluPiece;
    const float* x = a.x + row * a.x_stride + first;
    const int64_t to_next = item + pieces < items.end ? a.x_stride : 0;
    float* out = a.out + row * a.out_stride + first;
    silu_and_mul_row(x, x + a.width, to_next, out, smaller(kSiluPiece, a.width - first));
  }
}

// `count` of sixteen lanes from p, the others zeros: what pads the last dimensions of a head.
TGK_INLINE Vec load_up_to(const float* p, int64_t count) { return count >= kLanes ? load(p) : load_first(p, (int)count); }

template <class Format>
TGK_INLINE Piece<Format> piece_of(const TgkCache& cache, int64_t slot, int64_t head) {
  return {cache, slot / cache.block_size, head, slot % cache.block_size / kLanes};
}

template <class Format>
void store_token(const TgkStoreKV& a, int64_t row, int64_t slot) {
  const int64_t size = a.cache.head_dim;
  for (int64_t head = 0; head < a.cache.num_kv_heads; head++) {
    const Piece<Format> piece = piece_of<Format>(a.cache, slot, head);
    const float *k = a.k + row * a.k_stride + head * size, *v = a.v + row * a.v_stride + head * size;
    for (int64_t i = 0; i < size; i += kLanes) {
      piece.set_key(slot % kLanes, i, load_up_to(k + i, size - i));
      piece.set_value(slot % kLanes, i, load_up_to(v + i, size - i));
    }
  }
}

// Sixteen rows that are a whole piece, in order.
template <class Format>
void store_piece(const TgkStoreKV& a, int64_t row, int64_t slot) {
  const int64_t size = a.cache.head_dim;
  for (int64_t head = 0; head < a.cache.num_kv_heads; head++) {
    const Piece<Format> piece = piece_of<Format>(a.cache, slot, head);
    const float *k = a.k + row * a.k_stride + head * size, *v = a.v + row * a.v_stride + head * size;
    for (int64_t i = 0; i < size; i += kLanes) {
      Vec tokens[kLanes];
      TGK_UNROLL for (int t = 0; t < kLanes; t++) tokens[t] = load_up_to(k + t * a.k_stride + i, size - i);
      piece.set_keys(i, tokens);
      TGK_UNROLL for (int t = 0; t < kLanes; t++) tokens[t] = load_up_to(v + t * a.v_stride + i, size - i);
      piece.set_values(i, tokens);
    }
  }
}

TGK_INLINE bool is_whole_piece(const int32_t* slots, int64_t count) {
  if (count < kLanes || slots[0] < 0 || slots[0] % kLanes) return false;
  for (int i = 1; i < kLanes; i++)
    if (slots[i] != slots[0] + i) return false;
  return true;
}

template <class Format>
void store_kv_in_format(const TgkStoreKV& a, const int32_t* slot_mapping, Span rows) {
  for (int64_t row = rows.begin; row < rows.end;) {
    const int32_t slot = slot_mapping[row];
    const bool is_whole = is_whole_piece(slot_mapping + row, rows.end - row);
    if (is_whole)
      store_piece<Format>(a, row, slot);
    else if (slot >= 0)
      store_token<Format>(a, row, slot);
    row += is_whole ? kLanes : 1;
  }
}

void store_kv(const TgkStoreKV& a, const int32_t* slot_mapping, Span rows) {
  if (a.cache.format == TGK_BF16)
    store_kv_in_format<PanelBF16>(a, slot_mapping, rows);
  else
    store_kv_in_format<PanelF32>(a, slot_mapping, rows);
}

}  // namespace TGK_ISA
}  // namespace tgk
