// Weights from rows to panels (formats.h). Done once at load: plain loops, any instruction set.
#include <string.h>

#include "abi.h"
#include "errors.h"

namespace {

constexpr int64_t kLanes = 16;

float from_f16(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | fraction << 13;
  } else if (exponent) {
    bits = sign | (exponent + 112) << 23 | fraction << 13;
  } else {
    const float tiny = (float)fraction * 5.9604644775390625e-8f;  // 2^-24
    return sign ? -tiny : tiny;
  }
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

float from_bf16(uint16_t half) {
  const uint32_t bits = (uint32_t)half << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

int64_t panel_elements(int64_t in_features, int32_t format) {
  const int64_t rows = format == TGK_BF16 ? (in_features + 1) / 2 * 2 : in_features;
  return rows * kLanes;
}

// Element (k, column) of a panel.
int64_t place(int64_t k, int64_t column, int32_t format) {
  return format == TGK_BF16 ? (k / 2 * kLanes + column) * 2 + k % 2 : k * kLanes + column;
}

// Each column of each panel is one row of the source; columns beyond the last row are zeros.
template <class From, class To, class Convert>
void pack(const From* source, int64_t rows, int64_t in_features, To* panels, int32_t format, Convert convert) {
  const int64_t size = panel_elements(in_features, format);
  for (int64_t first = 0; first < rows; first += kLanes) {
    To* panel = panels + first / kLanes * size;
    memset(panel, 0, size * sizeof(To));
    for (int64_t column = 0; column < kLanes && first + column < rows; column++) {
      const From* row = source + (first + column) * in_features;
      for (int64_t k = 0; k < in_features; k++) panel[place(k, column, format)] = convert(row[k]);
    }
  }
}

}  // namespace

extern "C" int64_t tgk_packed_bytes(int64_t out_features, int64_t in_features, int32_t format) {
  const int64_t element = format == TGK_F32 ? 4 : format == TGK_BF16 || format == TGK_F16 ? 2 : 1;
  return (out_features + kLanes - 1) / kLanes * panel_elements(in_features, format) * element;
}

extern "C" int32_t tgk_pack(const void* source, int32_t source_format, int64_t rows, int64_t in_features, void* panels,
                            int32_t format) {
  const auto same = [](auto x) { return x; };
  const uint16_t* halves = (const uint16_t*)source;
  if (format == source_format && (format == TGK_BF16 || format == TGK_F16))
    pack(halves, rows, in_features, (uint16_t*)panels, format, same);
  else if (format == TGK_F32 && source_format == TGK_F32)
    pack((const float*)source, rows, in_features, (float*)panels, format, same);
  else if (format == TGK_F32 && source_format == TGK_BF16)
    pack(halves, rows, in_features, (float*)panels, format, from_bf16);
  else if (format == TGK_F32 && source_format == TGK_F16)
    pack(halves, rows, in_features, (float*)panels, format, from_f16);
  else
    return tgk::fail("pack: weights of format %d cannot become panels of format %d", source_format, format);
  return 0;
}

extern "C" int32_t tgk_pack_i8(const int8_t* source, int64_t rows, int64_t in_features, void* panels) {
  pack(source, rows, in_features, (int8_t*)panels, TGK_I8, [](int8_t x) { return x; });
  return 0;
}
