// Formats of panels: how sixteen neighbouring columns of row k are found and become float32.
//
// A panel is [size_k][16 columns]. Two-byte floats of rows k and k + 1 share 32-bit words (k low), so that a shift or a
// mask makes float32 of sixteen at a time on every instruction set; size_k is then padded to an even number.
// Cached keys are such panels too (k: dimension, columns: tokens), and so are cached values (k: token, columns:
// dimensions).
#pragma once

#include "vector.h"

namespace tgk {
namespace TGK_ISA {

// kUnit rows are stored as one; at<J>(unit) is row J of a unit. kScaled: rows are multiplied by their group's scales.
struct PanelF32 {
  static constexpr int kUnit = 1, kUnitBytes = 64;
  static constexpr bool kScaled = false;
  template <int J>
  static TGK_INLINE Vec at(const char* unit) {
    return load((const float*)unit);
  }
};

struct PanelBF16 {
  static constexpr int kUnit = 2, kUnitBytes = 64;
  static constexpr bool kScaled = false;
  template <int J>
  static TGK_INLINE Vec at(const char* unit) {
    return J == 0 ? load_bf16_low(unit) : load_bf16_high(unit);
  }
};

struct PanelF16 {
  static constexpr int kUnit = 1, kUnitBytes = 32;
  static constexpr bool kScaled = false;
  template <int J>
  static TGK_INLINE Vec at(const char* unit) {
    return load_f16(unit);
  }
};

// Whole numbers, times a scale for each column and group of rows.
struct PanelI8 {
  static constexpr int kUnit = 1, kUnitBytes = 16;
  static constexpr bool kScaled = true;
  template <int J>
  static TGK_INLINE Vec at(const char* unit) {
    return load_i8(unit);
  }
};

template <class Format>
TGK_INLINE int64_t panel_bytes(int64_t size_k) {
  return ceil_div(size_k, Format::kUnit) * Format::kUnitBytes;
}

}  // namespace TGK_ISA
}  // namespace tgk
