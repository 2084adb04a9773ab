// The inner loop of every matrix product: a few rows of x by a few panels, each sum in one register from first to last k.
//
// A sum is acc = fma(w, x, acc) for k = 0, 1, 2 ..., whatever the number of rows and panels that are computed beside it,
// and whatever the piece of k that one call covers: a row's result is the same to the last bit in any batch.
#pragma once

#include "formats.h"

namespace tgk {
namespace TGK_ISA {

// How far ahead of its use a panel is asked for, where it comes from memory.
constexpr int kPrefetchBytes = 1024;
// With few registers one panel's row is held at a time, and numbers of x are loaded again for the next panel.
constexpr bool kLoadsOnePanel = kMaxAccumulators < 24;

// Rows of x, four to a pointer: so many addresses that are not a pointer each leave the registers to the sums.
template <int R>
struct Rows {
  const float* first[(R + 3) / 4];
  int64_t stride, three_strides;

  TGK_INLINE Rows(const float* x, int64_t x_stride) : stride(x_stride), three_strides(3 * x_stride) {
    TGK_UNROLL for (int i = 0; i < (R + 3) / 4; i++) first[i] = x + 4 * i * x_stride;
  }
  TGK_INLINE const float& at(int r, int k) const {
    const float* x = first[r / 4] + k;
    return r % 4 == 3 ? x[three_strides] : x[r % 4 * stride];
  }
  TGK_INLINE void advance(int k) {
    TGK_UNROLL for (int i = 0; i < (R + 3) / 4; i++) first[i] += k;
  }
};

template <class Format, int J, int R, int P>
TGK_INLINE void multiply_row(Vec (&acc)[R][P], const Rows<R>& x, const char* const (&units)[P], const Vec* scales) {
  if (kLoadsOnePanel) {
    TGK_UNROLL for (int p = 0; p < P; p++) {
      Vec w = Format::template at<J>(units[p]);
      if (Format::kScaled) w = mul(w, scales[p]);
      TGK_UNROLL for (int r = 0; r < R; r++) {
        accumulate(acc[r][p], w, splat(x.at(r, J)));
        // Loads stay in this order: brought forward, they would push sums out of the registers.
        __asm__ volatile("" ::: "memory");
      }
    }
    return;
  }
  Vec w[P];
  TGK_UNROLL for (int p = 0; p < P; p++) {
    w[p] = Format::template at<J>(units[p]);
    if (Format::kScaled) w[p] = mul(w[p], scales[p]);
  }
  TGK_UNROLL for (int r = 0; r < R; r++) {
    const Vec b = splat(x.at(r, J));
    TGK_UNROLL for (int p = 0; p < P; p++) accumulate(acc[r][p], w[p], b);
  }
}

// acc[r][p] += sum over k < size_k of x[r][k] * panel p's row k. Panels begin at row 0 of this piece.
template <class Format, int R, int P>
TGK_INLINE void multiply(Vec (&acc)[R][P], const float* x, int64_t x_stride, const char* const (&panels)[P],
                         int64_t size_k, const Vec* scales = nullptr) {
  Rows<R> rows(x, x_stride);
  const char* units[P];
  TGK_UNROLL for (int p = 0; p < P; p++) units[p] = panels[p];
  int64_t k = 0;
  for (; k + Format::kUnit <= size_k; k += Format::kUnit) {
    // For pieces that are in the first cache already this costs a twentieth of the loads, and nothing else.
    TGK_UNROLL for (int p = 0; p < P; p++) prefetch(units[p] + kPrefetchBytes);
    multiply_row<Format, 0>(acc, rows, units, scales);
    if (Format::kUnit == 2) multiply_row<Format, 1>(acc, rows, units, scales);
    TGK_UNROLL for (int p = 0; p < P; p++) units[p] += Format::kUnitBytes;
    rows.advance(Format::kUnit);
  }
  if (k < size_k) multiply_row<Format, 0>(acc, rows, units, scales);
}

}  // namespace TGK_ISA
}  // namespace tgk
