// Ops whose tokens do not meet: embedding, norms, rotary positions, silu, and the way into the cache.
//
// Threads share out rows; the pointwise ones also split a row, so that a single one does not leave threads idle.
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

// One vector of `width`, after adding it to `residual` where there is one.
TGK_INLINE void norm_one(const float* x, float* residual, const float* weight, float* out, int64_t width, float eps) {
  const int64_t whole = width / kLanes * kLanes;
  const int rest = (int)(width - whole);
  Vec squares = zero();
  for (int64_t i = 0; i < whole; i += kLanes) {
    Vec v = load(x + i);
    if (residual) {
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
  for (int64_t row = rows.begin; row < rows.end; row++)
    for (int64_t group = 0; group < a.groups; group++)
      norm_one(a.x + row * a.x_stride + group * a.x_group_stride,
               a.residual ? a.residual + row * a.residual_stride : nullptr, a.weight,
               a.out + row * a.out_stride + group * a.width, a.width, a.eps);
}

TGK_INLINE void rotate_head(float* head, const float* cos, const float* sin, int64_t half) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
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
    for (int64_t head = 0; head < a.num_heads; head++)
      rotate_head(a.q + row * a.q_stride + head * a.head_dim, cos, sin, a.half);
    for (int64_t head = 0; head < a.num_kv_heads; head++)
      rotate_head(a.k + row * a.k_stride + head * a.head_dim, cos, sin, a.half);
  }
}

TGK_INLINE Vec silu(Vec x) { return div(x, add(splat(1.0f), exponential(sub(zero(), x)))); }

TGK_INLINE void silu_and_mul_row(const float* gate, const float* up, float* out, int64_t size) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(out + i, mul(silu(load(gate + i)), load(up + i)));
  const int rest = (int)(size - i);
  if (rest) store_first(out + i, mul(silu(load_first(gate + i, rest)), load_first(up + i, rest)), rest);
}

// Items are pieces of kSiluPiece columns of a row.
constexpr int64_t kSiluPiece = 512;

void silu_and_mul(const TgkSilu& a, int64_t num_rows, int thread, int num_threads) {
  const int64_t pieces = ceil_div(a.width, kSiluPiece);
  const Span items = part_of(num_rows * pieces, thread, num_threads);
  for (int64_t item = items.begin; item < items.end; item++) {
    const int64_t row = item / pieces, first = item % pieces * kSiluPiece;
    const float* x = a.x + row * a.x_stride + first;
    silu_and_mul_row(x, x + a.width, a.out + row * a.out_stride + first, smaller(kSiluPiece, a.width - first));
  }
}

template <class Format>
TGK_INLINE void store_token(const TgkStoreKV& a, int64_t row, int64_t slot) {
  for (int64_t head = 0; head < a.cache.num_kv_heads; head++) {
    const Piece<Format> piece(a.cache, slot / a.cache.block_size, head, slot % a.cache.block_size / kLanes);
    const int64_t token = slot % kLanes;
    const float* k = a.k + row * a.k_stride + head * a.cache.head_dim;
    const float* v = a.v + row * a.v_stride + head * a.cache.head_dim;
    for (int64_t i = 0; i < a.cache.head_dim; i++) piece.set_key(token, i, k[i]);
    for (int64_t i = 0; i < a.cache.head_dim; i++) piece.set_value(token, i, v[i]);
  }
}

void store_kv(const TgkStoreKV& a, const int32_t* slot_mapping, Span rows) {
  for (int64_t row = rows.begin; row < rows.end; row++) {
    if (slot_mapping[row] < 0) continue;
    if (a.cache.format == TGK_BF16)
      store_token<PanelBF16>(a, row, slot_mapping[row]);
    else
      store_token<PanelF32>(a, row, slot_mapping[row]);
  }
}

}  // namespace TGK_ISA
}  // namespace tgk
