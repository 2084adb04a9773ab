// Sixteen float32 lanes on each instruction set: the only file that knows intrinsics.
//
// Included by the kernels_*.cpp files, each compiled with its own flags and TGK_ISA set to its namespace. Nothing here,
// or in what includes it, may instantiate standard library templates: the linker would keep one copy for all sets.
// A lane's result never depends on the other lanes. Products are fused with their sum only where `fma` says so.
#pragma once

#include <stdint.h>
#include <string.h>

#define TGK_INLINE inline __attribute__((always_inline))
#define TGK_UNROLL _Pragma("GCC unroll 16")

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace tgk {
namespace TGK_ISA {

constexpr int kLanes = 16;

#if defined(__AVX512F__)

// Sixteen-lane accumulators that fit the registers beside the operands of a matrix product.
constexpr int kMaxAccumulators = 24;

struct Vec {
  __m512 v;
};

TGK_INLINE Vec zero() { return {_mm512_setzero_ps()}; }
TGK_INLINE Vec splat(float x) { return {_mm512_set1_ps(x)}; }
TGK_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
TGK_INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
TGK_INLINE float first_lane(Vec a) { return _mm512_cvtss_f32(a.v); }
// Lane i is lane i ^ N of `a`.
template <int N>
TGK_INLINE Vec lanes_across(Vec a) {
  if (N == 8) return {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)};
  if (N == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xb1)};
  return {_mm512_permute_ps(a.v, N == 2 ? 0x4e : 0xb1)};
}
// Lane i of `b` where i & N, else of `a`.
template <int N>
TGK_INLINE Vec blend(Vec a, Vec b) {
  return {_mm512_mask_blend_ps(N == 8 ? 0xff00 : N == 4 ? 0xf0f0 : N == 2 ? 0xcccc : 0xaaaa, a.v, b.v)};
}
TGK_INLINE Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
TGK_INLINE Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
TGK_INLINE Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
TGK_INLINE Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
TGK_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TGK_INLINE void accumulate(Vec& sum, Vec a, Vec b) { sum = fma(a, b, sum); }
// The larger; `b` where either is NaN.
TGK_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
TGK_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
TGK_INLINE Vec round_to_integer(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a * 2^n for an integral n within the exponents of normal numbers.
TGK_INLINE Vec scale_by_power(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// a - floor(a), and a * 2^floor(x).
TGK_INLINE Vec fraction(Vec a) { return {_mm512_reduce_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
TGK_INLINE Vec scale_by_floor(Vec a, Vec x) { return {_mm512_scalef_ps(a.v, x.v)}; }
// Sixteen 32-bit words, the low halves (the high ones) read as bfloat16.
TGK_INLINE Vec load_bf16_low(const void* p) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))}; }
TGK_INLINE Vec load_bf16_high(const void* p) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32((int)0xffff0000)))};
}
// The words that those two read: numbers rounded to the nearest bfloat16, ties to even; NaN stays NaN.
TGK_INLINE __m512i rounded_to_high_half(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits, _mm512_set1_epi32(0x400000));
}
TGK_INLINE Vec bf16_words(Vec low, Vec high) {
  const __m512i low_half = _mm512_srli_epi32(rounded_to_high_half(low.v), 16);
  return {_mm512_castsi512_ps(_mm512_mask_blend_epi16(0xaaaaaaaau, low_half, rounded_to_high_half(high.v)))};
}
// The low (0) or the high half (1) of such words, and not a byte of the other.
TGK_INLINE void store_halves(void* p, int half, Vec words) {
  _mm512_mask_storeu_epi16(p, 0x55555555u << half, _mm512_castps_si512(words.v));
}
TGK_INLINE Vec load_bf16(const void* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
TGK_INLINE Vec load_f16(const void* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
TGK_INLINE Vec load_i8(const void* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }
// Lanes where a > b, and those where a < b does not hold, as bits.
TGK_INLINE uint32_t lanes_above(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
TGK_INLINE uint32_t lanes_not_below(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ); }
// `a` where x >= limit, else 0.
TGK_INLINE Vec zero_where_below(Vec a, Vec x, Vec limit) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_GE_OQ), a.v)};
}
TGK_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }

#elif defined(__AVX2__)

constexpr int kMaxAccumulators = 6;

struct Vec {
  __m256 lo, hi;
};

TGK_INLINE Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
TGK_INLINE Vec splat(float x) {
  __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
TGK_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
TGK_INLINE void store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
TGK_INLINE float first_lane(Vec a) { return _mm256_cvtss_f32(a.lo); }
// Lane i is lane i ^ N of `a`.
template <int N>
TGK_INLINE Vec lanes_across(Vec a) {
  if (N == 8) return {a.hi, a.lo};
  if (N == 4) return {_mm256_permute2f128_ps(a.lo, a.lo, 1), _mm256_permute2f128_ps(a.hi, a.hi, 1)};
  return {_mm256_permute_ps(a.lo, N == 2 ? 0x4e : 0xb1), _mm256_permute_ps(a.hi, N == 2 ? 0x4e : 0xb1)};
}
// Lane i of `b` where i & N, else of `a`.
template <int N>
TGK_INLINE Vec blend(Vec a, Vec b) {
  if (N == 8) return {a.lo, b.hi};
  constexpr int mask = N == 4 ? 0xf0 : N == 2 ? 0xcc : 0xaa;
  return {_mm256_blend_ps(a.lo, b.lo, mask), _mm256_blend_ps(a.hi, b.hi, mask)};
}
TGK_INLINE Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
TGK_INLINE Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
TGK_INLINE Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
TGK_INLINE Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
TGK_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
// sum = a * b + sum. As an instruction and not as an intrinsic: with one register to spare gcc puts the result where the
// factor was, and then moves and spills to get it back.
TGK_INLINE void accumulate(Vec& sum, Vec a, Vec b) {
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum.lo) : "x"(a.lo), "x"(b.lo));
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum.hi) : "x"(a.hi), "x"(b.hi));
}
// The larger; `b` where either is NaN.
TGK_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
TGK_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
TGK_INLINE Vec round_to_integer(Vec a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
// a * 2^n for an integral n within the exponents of normal numbers.
TGK_INLINE Vec scale_by_power(Vec a, Vec n) {
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.lo), _mm256_slli_epi32(_mm256_cvtps_epi32(n.lo), 23))),
          _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.hi), _mm256_slli_epi32(_mm256_cvtps_epi32(n.hi), 23)))};
}
TGK_INLINE Vec floor(Vec a) { return {_mm256_floor_ps(a.lo), _mm256_floor_ps(a.hi)}; }
TGK_INLINE __m256i load_words(const void* p, int half) { return _mm256_loadu_si256((const __m256i*)p + half); }
// Sixteen 32-bit words, the low halves (the high ones) read as bfloat16.
TGK_INLINE Vec load_bf16_low(const void* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(load_words(p, 0), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(load_words(p, 1), 16))};
}
// Its mask comes from memory each time: in a register it would push out one of the sums of a matrix product.
alignas(32) static const volatile uint32_t kHighHalves[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                                             0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};
TGK_INLINE Vec load_bf16_high(const void* p) {
  const __m256i mask = *(const volatile __m256i*)kHighHalves;
  return {_mm256_castsi256_ps(_mm256_and_si256(load_words(p, 0), mask)),
          _mm256_castsi256_ps(_mm256_and_si256(load_words(p, 1), mask))};
}
// The words that those two read: numbers rounded to the nearest bfloat16, ties to even; NaN stays NaN.
TGK_INLINE __m256i rounded_to_high_half(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
TGK_INLINE __m256 bf16_words8(__m256 low, __m256 high) {
  const __m256i low_half = _mm256_srli_epi32(rounded_to_high_half(low), 16);
  return _mm256_castsi256_ps(_mm256_blend_epi16(low_half, rounded_to_high_half(high), 0xaa));
}
TGK_INLINE Vec bf16_words(Vec low, Vec high) { return {bf16_words8(low.lo, high.lo), bf16_words8(low.hi, high.hi)}; }
TGK_INLINE Vec load_bf16(const void* p) {
  const __m128i* words = (const __m128i*)p;
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(words)), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(words + 1)), 16))};
}
TGK_INLINE Vec load_f16(const void* p) {
  const __m128i* words = (const __m128i*)p;
  return {_mm256_cvtph_ps(_mm_loadu_si128(words)), _mm256_cvtph_ps(_mm_loadu_si128(words + 1))};
}
TGK_INLINE Vec load_i8(const void* p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
// Lanes where a > b, and those where a < b does not hold, as bits.
TGK_INLINE uint32_t bits_of(__m256 lo, __m256 hi) { return (uint32_t)_mm256_movemask_ps(lo) | (uint32_t)_mm256_movemask_ps(hi) << 8; }
TGK_INLINE uint32_t lanes_above(Vec a, Vec b) {
  return bits_of(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ));
}
TGK_INLINE uint32_t lanes_not_below(Vec a, Vec b) {
  return bits_of(_mm256_cmp_ps(a.lo, b.lo, _CMP_NLT_UQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_NLT_UQ));
}
// `a` where x >= limit, else 0.
TGK_INLINE Vec zero_where_below(Vec a, Vec x, Vec limit) {
  return {_mm256_and_ps(a.lo, _mm256_cmp_ps(x.lo, limit.lo, _CMP_GE_OQ)), _mm256_and_ps(a.hi, _mm256_cmp_ps(x.hi, limit.hi, _CMP_GE_OQ))};
}
TGK_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }

#elif defined(__ARM_NEON)

constexpr int kMaxAccumulators = 6;

struct Vec {
  float32x4_t a, b, c, d;
};


TGK_INLINE Vec splat(float x) {
  float32x4_t v = vdupq_n_f32(x);
  return {v, v, v, v};
}
TGK_INLINE Vec zero() { return splat(0.0f); }
TGK_INLINE Vec load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
TGK_INLINE void store(float* p, Vec x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}
TGK_INLINE float first_lane(Vec x) { return vgetq_lane_f32(x.a, 0); }
// Lane i is lane i ^ N of `x`.
template <int N>
TGK_INLINE float32x4_t across4(float32x4_t x) {
  return N == 2 ? vextq_f32(x, x, 2) : vrev64q_f32(x);
}
template <int N>
TGK_INLINE Vec lanes_across(Vec x) {
  if (N == 8) return {x.c, x.d, x.a, x.b};
  if (N == 4) return {x.b, x.a, x.d, x.c};
  return {across4<N>(x.a), across4<N>(x.b), across4<N>(x.c), across4<N>(x.d)};
}
// Lane i of `y` where i & N, else of `x`.
template <int N>
TGK_INLINE float32x4_t blend4(float32x4_t x, float32x4_t y) {
  if (N == 2) return vcombine_f32(vget_low_f32(x), vget_high_f32(y));
  return vbslq_f32(vreinterpretq_u32_u64(vdupq_n_u64(0xffffffffu)), x, y);
}
template <int N>
TGK_INLINE Vec blend(Vec x, Vec y) {
  if (N == 8) return {x.a, x.b, y.c, y.d};
  if (N == 4) return {x.a, y.b, x.c, y.d};
  return {blend4<N>(x.a, y.a), blend4<N>(x.b, y.b), blend4<N>(x.c, y.c), blend4<N>(x.d, y.d)};
}
#define TGK_BINARY(name, op) \
  TGK_INLINE Vec name(Vec x, Vec y) { return {op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)}; }
TGK_BINARY(add, vaddq_f32)
TGK_BINARY(sub, vsubq_f32)
TGK_BINARY(mul, vmulq_f32)
TGK_BINARY(div, vdivq_f32)
// The larger; NaN where either is.
TGK_BINARY(max, vmaxq_f32)
TGK_BINARY(min, vminq_f32)
#undef TGK_BINARY
TGK_INLINE Vec fma(Vec x, Vec y, Vec z) {
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
}
TGK_INLINE void accumulate(Vec& sum, Vec a, Vec b) { sum = fma(a, b, sum); }
TGK_INLINE Vec round_to_integer(Vec x) { return {vrndnq_f32(x.a), vrndnq_f32(x.b), vrndnq_f32(x.c), vrndnq_f32(x.d)}; }
TGK_INLINE float32x4_t scale4(float32x4_t x, float32x4_t n) {
  return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), vshlq_n_s32(vcvtnq_s32_f32(n), 23)));
}
// x * 2^n for an integral n within the exponents of normal numbers.
TGK_INLINE Vec scale_by_power(Vec x, Vec n) { return {scale4(x.a, n.a), scale4(x.b, n.b), scale4(x.c, n.c), scale4(x.d, n.d)}; }
TGK_INLINE Vec floor(Vec x) { return {vrndmq_f32(x.a), vrndmq_f32(x.b), vrndmq_f32(x.c), vrndmq_f32(x.d)}; }
TGK_INLINE float32x4_t low4(const uint32_t* p) { return vreinterpretq_f32_u32(vshlq_n_u32(vld1q_u32(p), 16)); }
TGK_INLINE float32x4_t high4(const uint32_t* p) {
  return vreinterpretq_f32_u32(vandq_u32(vld1q_u32(p), vdupq_n_u32(0xffff0000u)));
}
// Sixteen 32-bit words, the low halves (the high ones) read as bfloat16.
TGK_INLINE Vec load_bf16_low(const void* p) {
  const uint32_t* w = (const uint32_t*)p;
  return {low4(w), low4(w + 4), low4(w + 8), low4(w + 12)};
}
TGK_INLINE Vec load_bf16_high(const void* p) {
  const uint32_t* w = (const uint32_t*)p;
  return {high4(w), high4(w + 4), high4(w + 8), high4(w + 12)};
}
// The words that those two read: numbers rounded to the nearest bfloat16, ties to even; NaN stays NaN.
TGK_INLINE uint32x4_t rounded_to_high_half(float32x4_t x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  return vbslq_u32(vceqq_f32(x, x), rounded, vorrq_u32(bits, vdupq_n_u32(0x400000)));
}
TGK_INLINE float32x4_t bf16_words4(float32x4_t low, float32x4_t high) {
  return vreinterpretq_f32_u32(vsriq_n_u32(rounded_to_high_half(high), rounded_to_high_half(low), 16));
}
TGK_INLINE Vec bf16_words(Vec low, Vec high) {
  return {bf16_words4(low.a, high.a), bf16_words4(low.b, high.b), bf16_words4(low.c, high.c), bf16_words4(low.d, high.d)};
}
TGK_INLINE float32x4_t bf16x4(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
TGK_INLINE Vec load_bf16(const void* p) {
  const uint16_t* w = (const uint16_t*)p;
  return {bf16x4(w), bf16x4(w + 4), bf16x4(w + 8), bf16x4(w + 12)};
}
TGK_INLINE float32x4_t f16x4(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
TGK_INLINE Vec load_f16(const void* p) {
  const uint16_t* w = (const uint16_t*)p;
  return {f16x4(w), f16x4(w + 4), f16x4(w + 8), f16x4(w + 12)};
}
TGK_INLINE Vec load_i8(const void* p) {
  const int8x16_t bytes = vld1q_s8((const int8_t*)p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
          vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))};
}
// Lanes where a > b, and those where a < b does not hold, as bits.
TGK_INLINE uint32_t bits_of(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d) {
  static const uint32_t kBits[4] = {1, 2, 4, 8};
  const uint32x4_t bits = vld1q_u32(kBits);
  return vaddvq_u32(vandq_u32(a, bits)) | vaddvq_u32(vandq_u32(b, bits)) << 4 | vaddvq_u32(vandq_u32(c, bits)) << 8 |
         vaddvq_u32(vandq_u32(d, bits)) << 12;
}
TGK_INLINE uint32_t lanes_above(Vec x, Vec y) {
  return bits_of(vcgtq_f32(x.a, y.a), vcgtq_f32(x.b, y.b), vcgtq_f32(x.c, y.c), vcgtq_f32(x.d, y.d));
}
TGK_INLINE uint32_t lanes_not_below(Vec x, Vec y) {
  return 0xffffu & ~bits_of(vcltq_f32(x.a, y.a), vcltq_f32(x.b, y.b), vcltq_f32(x.c, y.c), vcltq_f32(x.d, y.d));
}
TGK_INLINE float32x4_t where4(float32x4_t a, uint32x4_t mask) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), mask));
}
// `a` where x >= limit, else 0.
TGK_INLINE Vec zero_where_below(Vec a, Vec x, Vec limit) {
  return {where4(a.a, vcgeq_f32(x.a, limit.a)), where4(a.b, vcgeq_f32(x.b, limit.b)),
          where4(a.c, vcgeq_f32(x.c, limit.c)), where4(a.d, vcgeq_f32(x.d, limit.d))};
}
TGK_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

#endif

// The first n lanes from p, zeros in the others; and back.
TGK_INLINE Vec load_first(const float* p, int n) {
  float lanes[kLanes] = {0};
  memcpy(lanes, p, n * sizeof(float));
  return load(lanes);
}
TGK_INLINE void store_first(float* p, Vec a, int n) {
  float lanes[kLanes];
  store(lanes, a);
  memcpy(p, lanes, n * sizeof(float));
}

#if !defined(__AVX512F__)
// The low (0) or the high half (1) of words, and not a byte of the other.
TGK_INLINE void store_halves(void* p, int half, Vec words) {
  uint16_t halves[2 * kLanes];
  store((float*)halves, words);
  for (int i = half; i < 2 * kLanes; i += 2) ((uint16_t*)p)[i] = halves[i];
}
#endif

// Lane j of vector i and lane i of vector j change places.
template <int N>
TGK_INLINE void transpose_blocks(Vec (&rows)[kLanes]) {
  TGK_UNROLL for (int i = 0; i < kLanes; i++) {
    if (i & N) continue;
    const Vec upper = rows[i], lower = rows[i + N];
    rows[i] = blend<N>(upper, lanes_across<N>(lower));
    rows[i + N] = blend<N>(lanes_across<N>(upper), lower);
  }
}
TGK_INLINE void transpose(Vec (&rows)[kLanes]) {
  transpose_blocks<8>(rows);
  transpose_blocks<4>(rows);
  transpose_blocks<2>(rows);
  transpose_blocks<1>(rows);
}

// All sixteen lanes joined by an op of two whose operands may change places, always in the same order: halves, quarters ...
template <class Op>
TGK_INLINE float join_lanes(Vec a, Op op) {
  a = op(a, lanes_across<8>(a));
  a = op(a, lanes_across<4>(a));
  a = op(a, lanes_across<2>(a));
  return first_lane(op(a, lanes_across<1>(a)));
}
TGK_INLINE float sum_of_lanes(Vec a) { return join_lanes(a, add); }
// A lane that is NaN may be passed over.
TGK_INLINE float largest_of_lanes(Vec a) { return join_lanes(a, max); }

// e^x to about 2e-7 of its value; the ends of its range for an x beyond; NaN for NaN.
TGK_INLINE Vec exponential(Vec x) {
  x = max(splat(-87.0f), x);
  x = min(splat(88.0f), x);
  const Vec n = round_to_integer(mul(x, splat(1.44269504f)));
  // ln 2 in two parts, the first exact in few bits; the polynomial is Cephes' expf.
  Vec r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  Vec p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = add(fma(mul(p, r), r, r), splat(1.0f));
  return scale_by_power(p, n);
}

#if !defined(__AVX512F__)
// a - floor(a), and a * 2^floor(x), or 2^-126 for an x below.
TGK_INLINE Vec fraction(Vec a) { return sub(a, floor(a)); }
TGK_INLINE Vec scale_by_floor(Vec a, Vec x) { return scale_by_power(a, floor(max(splat(-126.0f), x))); }
#endif

// 2^x to about 2e-7 of its value, for x up to 127; below 2^-126 it may be anything so small. NaN for NaN.
TGK_INLINE Vec power_of_two(Vec x) {
  // 2^f = 1 + f * p(f) for f in [0, 1), the p that errs least.
  const Vec f = fraction(x);
  Vec p = splat(1.86713028e-3f);
  p = fma(p, f, splat(9.01702978e-3f));
  p = fma(p, f, splat(5.57999127e-2f));
  p = fma(p, f, splat(2.40164444e-1f));
  p = fma(p, f, splat(6.93151295e-1f));
  return scale_by_floor(fma(p, f, splat(1.0f)), x);
}

TGK_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
TGK_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
TGK_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Span {
  int64_t begin, end;
};

// Part `index` of `parts` nearly equal ones of [0, size).
TGK_INLINE Span part_of(int64_t size, int64_t index, int64_t parts) { return {size * index / parts, size * (index + 1) / parts}; }

}  // namespace TGK_ISA
}  // namespace tgk
