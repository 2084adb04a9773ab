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

template <class Format, int J, int R, int P>
TGK_INLINE void multiply_row(Vec (&acc)[R][P], const float* x, int64_t x_stride, const char* const (&units)[P],
                             const Vec* scales) {
  Vec w[P];
  TGK_UNROLL for (int p = 0; p < P; p++) {
    w[p] = Format::template at<J>(units[p]);
    if (Format::kScaled) w[p] = mul(w[p], scales[p]);
  }
  TGK_UNROLL for (int r = 0; r < R; r++) {
    const Vec b = splat(x[r * x_stride + J]);
    TGK_UNROLL for (int p = 0; p < P; p++) acc[r][p] = fma(w[p], b, acc[r][p]);
  }
}

// acc[r][p] += sum over k < size_k of x[r][k] * panel p's row k. Panels begin at row 0 of this piece.
template <class Format, int R, int P>
TGK_INLINE void multiply(Vec (&acc)[R][P], const float* x, int64_t x_stride, const char* const (&panels)[P],
                         int64_t size_k, const Vec* scales = nullptr) {
  const char* units[P];
  TGK_UNROLL for (int p = 0; p < P; p++) units[p] = panels[p];
  int64_t k = 0;
  for (; k + Format::kUnit <= size_k; k += Format::kUnit) {
    // For pieces that are in the first cache already this costs a twentieth of the loads, and nothing else.
    TGK_UNROLL for (int p = 0; p < P; p++) prefetch(units[p] + kPrefetchBytes);
    multiply_row<Format, 0>(acc, x + k, x_stride, units, scales);
    if (Format::kUnit == 2) multiply_row<Format, 1>(acc, x + k, x_stride, units, scales);
    TGK_UNROLL for (int p = 0; p < P; p++) units[p] += Format::kUnitBytes;
  }
  if (k < size_k) multiply_row<Format, 0>(acc, x + k, x_stride, units, scales);
}

}  // namespace TGK_ISA
}  // namespace tgk
