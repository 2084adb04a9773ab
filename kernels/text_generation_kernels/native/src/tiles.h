// AMX: products of tiles of bfloat16 that add up in tiles of float32. The only file that knows these instructions.
//
// As assembler and not as intrinsics: gcc's take no tile number from a template, and do not say that they touch memory.
#pragma once

#include <stdint.h>

#include "vector.h"

namespace tgk {
namespace TGK_ISA {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileRowBytes = 64;
constexpr int64_t kTileBytes = kTileRows * kTileRowBytes;
// One product's k: two bfloat16 in each of a weight tile's 16 rows.
constexpr int64_t kTileK = 32;

// Gives every tile a shape, and zeros. Tiles below `whole_from` have `rows` rows, the others sixteen.
TGK_INLINE void configure_tiles(int64_t rows, int whole_from) {
  struct alignas(64) {
    uint8_t palette, first_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } shape;
  memset(&shape, 0, sizeof shape);
  shape.palette = 1;
  for (int tile = 0; tile < 8; tile++) {
    shape.row_bytes[tile] = kTileRowBytes;
    shape.rows[tile] = (uint8_t)(tile < whole_from ? rows : kTileRows);
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(shape) : "memory");
}

// A thread that sleeps or is switched away then has no tiles to save.
TGK_INLINE void release_tiles() { __asm__ volatile("tilerelease" : : : "memory"); }

template <int T>
TGK_INLINE void zero_tile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(T));
}
template <int T>
TGK_INLINE void load_tile(const void* p, int64_t row_bytes) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(row_bytes), "i"(T) : "memory");
}
template <int T>
TGK_INLINE void store_tile(void* p, int64_t row_bytes) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(row_bytes), "i"(T) : "memory");
}
// As assembler, too: gcc 12 takes a lambda that only prefetches for one that does nothing.
template <int64_t Bytes>
TGK_INLINE void prefetch_lines(const char* p) {
  TGK_UNROLL for (int64_t line = 0; line < Bytes; line += 64) __asm__ volatile("prefetcht0 %0" : : "m"(p[line]));
}
// Sum += A * B. Each row's sums depend on that row of A alone.
template <int Sum, int A, int B>
TGK_INLINE void accumulate_tiles() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
}

// A number that is a constant, since tiles' numbers must be.
template <int N>
struct Constant {
  static constexpr int index = N;
};

// Calls visit(Constant<0>()) and so on, N times.
template <int N, class Visit>
TGK_INLINE void each_panel(Visit visit) {
  visit(Constant<0>());
  if constexpr (N > 1) visit(Constant<1>());
  if constexpr (N > 2) visit(Constant<2>());
  if constexpr (N > 3) visit(Constant<3>());
  if constexpr (N > 4) visit(Constant<4>());
}

// Calls visit with a count from 1 to 4 as a constant.
template <class Visit>
TGK_INLINE void by_count(int64_t count, Visit visit) {
  switch (count) {
    case 1:
      return visit(Constant<1>());
    case 2:
      return visit(Constant<2>());
    case 3:
      return visit(Constant<3>());
    default:
      return visit(Constant<4>());
  }
}

}  // namespace TGK_ISA
}  // namespace tgk
