// What tiles multiply in place of a float32: bfloat16 numbers, its parts, whose sum it is.
//
// The first part is the number rounded to bfloat16, the next one what that leaves, rounded, and so on. Two parts hold 17
// of a number's 24 bits or more, three all of them. Numbers that round to infinity, which are within 0.2 % of float32's
// largest, count as infinite. Denormals count as zero, in numbers and in their parts, as tile products take them anyway.
#pragma once

#include "tiles.h"

namespace tgk {
namespace TGK_ISA {

// 32 numbers to bfloat16, `low` first: to the nearest, ties to even; NaN stays NaN. Assembler, as in tiles.h: this one
// instruction is of AVX512_BF16, which processors with tiles have.
TGK_INLINE __m512i to_bf16(__m512 low, __m512 high) {
  __m512i out;
  __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(out) : "v"(low), "v"(high));
  return out;
}

// x - part, with `part` in bfloat16; 0 where the part is infinite or NaN, so that it is what x as a whole is.
TGK_INLINE __m512 rest_of(__m512 x, __m256i part) {
  constexpr int kInfiniteOrNaN = 0x99;
  const __m512 value = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(part), 16));
  return _mm512_maskz_sub_ps(_knot_mask16(_mm512_fpclass_ps_mask(value, kInfiniteOrNaN)), x, value);
}

// 32 numbers of x, `size` of them given and the rest zeros, as a row of 32 in each of the parts, `part_bytes` apart.
template <int kParts>
TGK_INLINE void split(const float* x, int64_t size, char* out, int64_t part_bytes) {
  const uint32_t given = size >= kTileK ? ~0u : (1u << size) - 1;
  __m512 low = _mm512_maskz_loadu_ps((__mmask16)given, x), high = _mm512_setzero_ps();
  if (given >> kLanes) high = _mm512_maskz_loadu_ps((__mmask16)(given >> kLanes), x + kLanes);
  TGK_UNROLL for (int part = 0; part < kParts; part++) {
    const __m512i rounded = to_bf16(low, high);
    _mm512_storeu_si512(out + part * part_bytes, rounded);
    low = rest_of(low, _mm512_castsi512_si256(rounded));
    high = rest_of(high, _mm512_extracti64x4_epi64(rounded, 1));
  }
}

// Two parts of 32 numbers that are positive and finite, or NaN, in fewer instructions: the first is cut off and not
// rounded, so that together they hold 16 bits or more.
TGK_INLINE void split_positive(Vec low, Vec high, char* out, int64_t part_bytes) {
  const __m512i first_bits = _mm512_set1_epi32((int)0xffff0000);
  const __m512 low_part = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(low.v), first_bits));
  const __m512 high_part = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(high.v), first_bits));
  _mm512_storeu_si512(out, to_bf16(low_part, high_part));
  _mm512_storeu_si512(out + part_bytes, to_bf16(_mm512_sub_ps(low.v, low_part), _mm512_sub_ps(high.v, high_part)));
}

}  // namespace TGK_ISA
}  // namespace tgk
