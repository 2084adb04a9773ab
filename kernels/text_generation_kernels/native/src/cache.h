// Where one key/value head's sixteen tokens lie in the paged cache, and how single numbers are written there.
//
// Keys of a piece are one panel: row k is dimension k of sixteen tokens. Values are head_dim / 16 panels: row k is token
// k's sixteen dimensions. Attention multiplies with both as `linear` does with weights. See formats.h.
#pragma once

#include "abi.h"
#include "formats.h"

namespace tgk {
namespace TGK_ISA {

TGK_INLINE int64_t padded_head_dim(int64_t head_dim) { return ceil_div(head_dim, kLanes) * kLanes; }

TGK_INLINE uint16_t to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40);  // NaN stays NaN
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);                   // to nearest, ties to even
}

template <class Format>
struct Piece {
  char* keys;
  char* values;

  TGK_INLINE Piece(const TgkCache& cache, int64_t block, int64_t head, int64_t piece) {
    const int64_t bytes = panel_bytes<Format>(padded_head_dim(cache.head_dim));
    const int64_t place = (block * cache.num_kv_heads + head) * (cache.block_size / kLanes) + piece;
    keys = (char*)cache.k + place * bytes;
    values = (char*)cache.v + place * bytes;
  }

  // The panel of dimensions [16 * i, 16 * i + 16).
  TGK_INLINE const char* values_panel(int64_t i) const { return values + i * panel_bytes<Format>(kLanes); }

  TGK_INLINE void set_key(int64_t token, int64_t dimension, float x) const { set(keys, dimension, token, x); }
  TGK_INLINE void set_value(int64_t token, int64_t dimension, float x) const {
    set(values + dimension / kLanes * panel_bytes<Format>(kLanes), token, dimension % kLanes, x);
  }

 private:
  static TGK_INLINE void set(char* panel, int64_t k, int64_t column, float x) {
    if (Format::kUnit == 2)
      ((uint16_t*)panel)[(k / 2 * kLanes + column) * 2 + k % 2] = to_bf16(x);
    else
      ((float*)panel)[k * kLanes + column] = x;
  }
};

}  // namespace TGK_ISA
}  // namespace tgk
