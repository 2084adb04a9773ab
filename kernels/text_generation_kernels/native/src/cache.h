// Where one key/value head's sixteen tokens lie in the paged cache, and how they are written there.
//
// Keys of a piece are one panel: row k is dimension k of sixteen tokens. Values are head_dim / 16 panels: row k is token
// k's sixteen dimensions. Attention multiplies with both as `linear` does with weights. See formats.h.
#pragma once

#include "abi.h"
#include "formats.h"

namespace tgk {
namespace TGK_ISA {

TGK_INLINE int64_t padded_head_dim(int64_t head_dim) { return ceil_div(head_dim, kLanes) * kLanes; }

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

  // Dimensions [dimension, dimension + 16) of one token; other tokens' bytes are not touched, since another thread may be
  // writing them. `dimension` is a multiple of 16.
  TGK_INLINE void set_key(int64_t token, int64_t dimension, Vec x) const {
    uint32_t words[kLanes];
    store((float*)words, Format::kUnit == 2 ? bf16_words(x, lanes_across<1>(x)) : x);
    uint32_t* column = (uint32_t*)keys + dimension / Format::kUnit * kLanes + token;
    TGK_UNROLL for (int i = 0; i < kLanes; i += Format::kUnit) column[i / Format::kUnit * kLanes] = words[i];
  }
  TGK_INLINE void set_value(int64_t token, int64_t dimension, Vec x) const {
    char* row = values + dimension / kLanes * panel_bytes<Format>(kLanes) + token / Format::kUnit * Format::kUnitBytes;
    if (Format::kUnit == 2)
      store_halves(row, (int)(token % 2), bf16_words(x, x));
    else
      store((float*)row, x);
  }

  // The same dimensions of all sixteen tokens, one in each vector.
  TGK_INLINE void set_keys(int64_t dimension, Vec (&tokens)[kLanes]) const {
    transpose(tokens);
    set_rows(keys + panel_bytes<Format>(dimension), tokens);
  }
  TGK_INLINE void set_values(int64_t dimension, const Vec (&tokens)[kLanes]) const {
    set_rows(values + panel_bytes<Format>(dimension), tokens);
  }

 private:
  static TGK_INLINE void set_rows(char* panel, const Vec (&rows)[kLanes]) {
    TGK_UNROLL for (int i = 0; i < kLanes; i += Format::kUnit)
      store((float*)(panel + panel_bytes<Format>(i)), Format::kUnit == 2 ? bf16_words(rows[i], rows[i + 1]) : rows[i]);
  }
};

}  // namespace TGK_ISA
}  // namespace tgk
