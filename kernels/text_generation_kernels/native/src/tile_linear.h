// x @ weight.T by tile products of bfloat16.
//
// A number of x is taken as the sum of its bfloat16 parts (parts.h): of two, or of three, which leave nothing out. A weight
// tile is loaded once and multiplied with the tiles of all parts, into one tile of float32 sums. Each sum is thereby made
// in one order, for one row as for many: 32 of k after the other, in each the parts after each other, and inside of a
// product as the processor does it. Int8 weights become bfloat16, exactly, and the sums of a group are multiplied with its
// scales when they are added to those of the groups before it.
//
// Threads share out row tiles, where there are many, and panels. Weights are the panels of formats.h: their two rows of k
// in 32-bit words are what a product wants.
#pragma once

#include "abi.h"
#include "formats.h"
#include "parts.h"
#include "team.h"
#include "tiles.h"

namespace tgk {
namespace TGK_ISA {

// The eight tiles: sums of a group of panels, the N parts of x, and weights. One row tile by four or five panels needs the
// fewest loads for a product; two by two was a tenth slower, and four with two parts up to a tenth (Sapphire Rapids).
constexpr int kWeights = 7;
constexpr int group_panels(int num_parts) { return kWeights - num_parts; }
template <int N>
constexpr int kGroupPanels = group_panels(N);
template <int N>
constexpr int kFirstPart = kGroupPanels<N>;
constexpr int64_t kSums = kTileRows * kLanes;
// Parts made at once: of so many bytes, which stay in the second cache beside a group of panels, and for so many row
// tiles that weights are read from memory in less time than they are multiplied in.
constexpr int64_t kPartsBytes = 1024 * 1024;
constexpr int64_t kBlockTiles = 16;
// Up to so many threads that need the same parts make them each for itself, which is sooner done than to get them from
// another's cache. More threads share the making.
constexpr int64_t kMakingTheirOwn = 2;
// Row tiles for which another thread reads the same weights: it needs no less time to multiply than to read them.
constexpr int64_t kRowPartTiles = 4;

// How a product is cut: rows into tiles, tiles into blocks; k into steps of one product each, steps into pieces. Threads
// are a grid of row parts and column parts.
struct Cut {
  int64_t num_rows;
  int64_t tile_rows;  // of every tile, the last may hold fewer
  int64_t num_tiles;
  int64_t num_steps;
  int64_t num_parts;  // of x
  int64_t scale_steps;  // that share a scale
  int64_t row_parts;
  int64_t column_parts;
  int64_t piece_steps;
  int64_t block_tiles;  // of one row part

  Cut(const TgkLinear& a, int64_t rows, int64_t num_threads) : num_rows(rows), num_parts(a.x_parts) {
    num_tiles = larger(1, ceil_div(num_rows, kTileRows));
    tile_rows = ceil_div(num_rows, num_tiles);
    num_steps = ceil_div(a.in_features, kTileK);
    scale_steps = a.format == TGK_I8 ? larger(1, smaller(a.group_size / kTileK, num_steps)) : 1;
    const int64_t groups = ceil_div(ceil_div(a.out_features, kLanes), group_panels(a.x_parts));
    row_parts = larger(1, smaller(num_tiles / kRowPartTiles, num_threads));
    column_parts = larger(1, smaller(num_threads / row_parts, groups));
    row_parts = larger(row_parts, smaller(num_threads / column_parts, num_tiles / 2));
    const int64_t most_bytes = smaller(ceil_div(num_tiles, row_parts), kBlockTiles) * num_steps * step_bytes();
    const int64_t pieces = larger(1, ceil_div(most_bytes, kPartsBytes));
    piece_steps = ceil_div(ceil_div(num_steps, pieces), scale_steps) * scale_steps;
    block_tiles = smaller(ceil_div(num_tiles, row_parts), larger(1, kPartsBytes / larger(1, tile_bytes())));
  }
  // A tile's parts are [piece_steps][num_parts][tile_rows][32].
  int64_t part_bytes() const { return tile_rows * kTileRowBytes; }
  int64_t step_bytes() const { return num_parts * part_bytes(); }
  int64_t tile_bytes() const { return piece_steps * step_bytes(); }
  bool shares_parts() const { return column_parts > kMakingTheirOwn; }
};

// What one thread multiplies: some row tiles with all panels it has, over one piece of k.
struct Work {
  const TgkLinear& a;
  const Cut& cut;
  Span tiles;
  Span steps;
  const char* parts;  // of the first tile, from the first step on
  char* scratch;

  int64_t rows_of(int64_t tile) const { return smaller(cut.tile_rows, cut.num_rows - tile * cut.tile_rows); }
  float* out(int64_t tile, int64_t panel) const { return a.out + tile * cut.tile_rows * a.out_stride + panel * kLanes; }
  const char* parts_of(int64_t tile, int64_t step) const {
    return parts + (tile - tiles.begin) * cut.tile_bytes() + (step - steps.begin) * cut.step_bytes();
  }
  bool is_first() const { return steps.begin == 0; }
  const float* bias(int64_t panel) const {
    return a.bias && steps.end == cut.num_steps ? a.bias + panel * kLanes : nullptr;
  }
};

// Parts of whole row tiles over a piece; `items` are tile * piece's steps + step.
template <int N>
TGK_INLINE void split_tiles(const TgkLinear& a, const Cut& cut, int64_t first_tile, Span steps, Span items, char* parts) {
  const int64_t count = steps.end - steps.begin;
  for (int64_t item = items.begin; item < items.end; item++) {
    const int64_t tile = item / count, step = item % count;
    const int64_t first_row = (first_tile + tile) * cut.tile_rows, k = (steps.begin + step) * kTileK;
    const int64_t rows = smaller(cut.tile_rows, cut.num_rows - first_row);
    char* out = parts + tile * cut.tile_bytes() + step * cut.step_bytes();
    for (int64_t row = 0; row < rows; row++)
      split<N>(a.x + (first_row + row) * a.x_stride + k, a.in_features - k, out + row * kTileRowBytes,
                    cut.part_bytes());
  }
}

// Adds some steps' products, of N parts each, to the sums of P panels, `stride` bytes apart. Calls beside(step, panel)
// where a product has been begun, which goes on while other instructions do.
template <int P, int N, class Beside>
TGK_INLINE void multiply_steps(const Cut& cut, const char* parts, const char* weights, int64_t stride, int64_t count,
                               Beside beside) {
  for (int64_t step = 0; step < count; step++, parts += cut.step_bytes(), weights += kTileBytes) {
    load_tile<kFirstPart<N>>(parts, kTileRowBytes);
    load_tile<kFirstPart<N> + 1>(parts + cut.part_bytes(), kTileRowBytes);
    if constexpr (N > 2) load_tile<kFirstPart<N> + 2>(parts + 2 * cut.part_bytes(), kTileRowBytes);
    each_panel<P>([&](auto panel) {
      constexpr int p = decltype(panel)::index;
      load_tile<kWeights>(weights + p * stride, kTileRowBytes);
      beside(step, p);
      accumulate_tiles<p, kFirstPart<N>, kWeights>();
      accumulate_tiles<p, kFirstPart<N> + 1, kWeights>();
      if constexpr (N > 2) accumulate_tiles<p, kFirstPart<N> + 2, kWeights>();
    });
  }
}

TGK_INLINE void read_sums(const float* out, int64_t stride, int64_t rows, int64_t columns, float* sums) {
  const int count = (int)smaller(columns, kLanes);
  for (int64_t row = 0; row < rows; row++) store(sums + row * kLanes, load_first(out + row * stride, count));
}

TGK_INLINE void write_sums(const float* sums, const float* bias, int64_t rows, int64_t columns, float* out, int64_t stride) {
  const int count = (int)smaller(columns, kLanes);
  const Vec added = bias ? load_first(bias, count) : zero();
  for (int64_t row = 0; row < rows; row++) {
    const Vec sum = load(sums + row * kLanes), y = bias ? add(sum, added) : sum;
    if (count == kLanes)
      store(out + row * stride, y);
    else
      store_first(out + row * stride, y, count);
  }
}

// P panels of bfloat16, from `first` on.
template <int P, int N>
void multiply_bf16(const Work& work, int64_t first) {
  const TgkLinear& a = work.a;
  const int64_t bytes = panel_bytes<PanelBF16>(a.in_features), begin = work.steps.begin * kTileBytes;
  const char* panels = (const char*)a.weight + first * bytes;
  const int64_t whole = smaller(work.steps.end, a.in_features / kTileK) - work.steps.begin;
  const bool has_rest = work.steps.begin + whole < work.steps.end;  // of fewer than 32 k
  alignas(64) char rest[P][kTileBytes];
  if (has_rest) {
    const int64_t place = begin + whole * kTileBytes;
    memset(rest, 0, sizeof rest);
    for (int p = 0; p < P; p++) memcpy(rest[p], panels + p * bytes + place, bytes - place);
  }
  alignas(64) float sums[kSums];
  for (int64_t tile = work.tiles.begin; tile < work.tiles.end; tile++) {
    const int64_t rows = work.rows_of(tile), stride_bytes = a.out_stride * (int64_t)sizeof(float);
    each_panel<P>([&](auto panel) {
      constexpr int p = decltype(panel)::index;
      const int64_t columns = a.out_features - (first + p) * kLanes;
      if (work.is_first()) return zero_tile<p>();
      const float* out = work.out(tile, first + p);
      if (rows == work.cut.tile_rows && columns >= kLanes) return load_tile<p>(out, stride_bytes);
      read_sums(out, a.out_stride, rows, columns, sums);
      load_tile<p>(sums, kTileRowBytes);
    });
    multiply_steps<P, N>(work.cut, work.parts_of(tile, work.steps.begin), panels + begin, bytes, whole,
                      [&](int64_t step, int p) {
                        // The panel's next tile, or after its last one the first of the panel that comes next.
                        const int64_t next = step + 1 < whole ? p * bytes + (step + 1) * kTileBytes : (P + p) * bytes;
                        prefetch_lines<kTileBytes>(panels + begin + next);
                      });
    if (has_rest)
      multiply_steps<P, N>(work.cut, work.parts_of(tile, work.steps.begin + whole), rest[0], kTileBytes, 1,
                        [](int64_t, int) {});
    each_panel<P>([&](auto panel) {
      constexpr int p = decltype(panel)::index;
      const int64_t columns = a.out_features - (first + p) * kLanes;
      float* out = work.out(tile, first + p);
      const float* bias = work.bias(first + p);
      if (rows == work.cut.tile_rows && columns >= kLanes && !bias) return store_tile<p>(out, stride_bytes);
      store_tile<p>(sums, kTileRowBytes);
      write_sums(sums, bias, rows, columns, out, a.out_stride);
    });
  }
}

// 32 rows of an int8 panel as a tile of bfloat16, `size` of them given.
TGK_INLINE void widen(const char* rows, int64_t size, char* tile) {
  alignas(64) char padded[kTileK * kLanes];
  if (size < kTileK) {
    memset(padded, 0, sizeof padded);
    memcpy(padded, rows, size * kLanes);
    rows = padded;
  }
  TGK_UNROLL for (int64_t i = 0; i < kTileK; i += 2) {
    const __m512i low = _mm512_castps_si512(load_i8(rows + i * kLanes).v);
    const __m512i high = _mm512_castps_si512(load_i8(rows + (i + 1) * kLanes).v);
    _mm512_store_si512(tile + i / 2 * kTileRowBytes, _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(low, 16), high));
  }
}

// P panels of int8, from `first` on. The tiles of a scale's rows are made while those before them are multiplied.
template <int P, int N>
void multiply_i8(const Work& work, int64_t first) {
  const TgkLinear& a = work.a;
  const Cut& cut = work.cut;
  const int64_t bytes = panel_bytes<PanelI8>(a.in_features), stride = cut.scale_steps * kTileBytes;
  const int64_t num_scales = ceil_div(a.in_features, a.group_size) * kLanes;
  const char* panels = (const char*)a.weight + first * bytes;
  float* totals = (float*)(work.scratch + 2 * P * stride);  // [tiles][P][16][16]
  alignas(64) float sums[kSums];
  const auto widened = [&](int64_t step) { return work.scratch + (step / cut.scale_steps % 2) * P * stride; };
  const auto rows_at = [&](int64_t step, int p) { return panels + p * bytes + step * kTileK * kLanes; };
  const auto widen_one = [&](int64_t step, int p, char* tiles) {
    prefetch_lines<kTileK * kLanes>(rows_at(step + 1, p));
    widen(rows_at(step, p), a.in_features - step * kTileK, tiles + p * stride);
  };
  for (int64_t tile = work.tiles.begin; tile < work.tiles.end && !work.is_first(); tile++)
    for (int p = 0; p < P; p++)
      read_sums(work.out(tile, first + p), a.out_stride, work.rows_of(tile), a.out_features - (first + p) * kLanes,
                totals + ((tile - work.tiles.begin) * P + p) * kSums);
  for (int64_t i = 0; i < smaller(cut.scale_steps, work.steps.end - work.steps.begin); i++)
    for (int p = 0; p < P; p++) widen_one(work.steps.begin + i, p, widened(work.steps.begin) + i * kTileBytes);
  for (int64_t step = work.steps.begin; step < work.steps.end; step += cut.scale_steps) {
    const int64_t count = smaller(cut.scale_steps, work.steps.end - step);
    const float* scales = a.scales + first * num_scales + step / cut.scale_steps * kLanes;
    for (int64_t tile = work.tiles.begin; tile < work.tiles.end; tile++) {
      float* own = totals + (tile - work.tiles.begin) * P * kSums;
      each_panel<P>([&](auto panel) { zero_tile<decltype(panel)::index>(); });
      multiply_steps<P, N>(cut, work.parts_of(tile, step), widened(step), stride, count, [&](int64_t i, int p) {
        const int64_t next = step + cut.scale_steps + i;
        if (tile > work.tiles.begin) return;
        if (next < work.steps.end)
          widen_one(next, p, widened(next) + i * kTileBytes);
        else
          prefetch_lines<kTileK * kLanes>(rows_at(work.steps.begin + i, P + p));
      });
      each_panel<P>([&](auto panel) {
        constexpr int p = decltype(panel)::index;
        store_tile<p>(sums, kTileRowBytes);
        const Vec scale = load(scales + p * num_scales);
        for (int64_t row = 0; row < cut.tile_rows; row++) {
          float* total = own + p * kSums + row * kLanes;
          store(total, fma(load(sums + row * kLanes), scale, step ? load(total) : zero()));
        }
      });
    }
  }
  for (int64_t tile = work.tiles.begin; tile < work.tiles.end; tile++)
    for (int p = 0; p < P; p++)
      write_sums(totals + ((tile - work.tiles.begin) * P + p) * kSums, work.bias(first + p), work.rows_of(tile),
                 a.out_features - (first + p) * kLanes, work.out(tile, first + p), a.out_stride);
}

template <int P, int N>
TGK_INLINE void multiply_group(const Work& work, int64_t first) {
  if (work.a.format == TGK_I8)
    multiply_i8<P, N>(work, first);
  else
    multiply_bf16<P, N>(work, first);
}

template <int N>
TGK_INLINE void multiply_panels(const Work& work, Span panels) {
  for (int64_t panel = panels.begin; panel < panels.end; panel += kGroupPanels<N>) {
    switch (smaller(kGroupPanels<N>, panels.end - panel)) {
      case 1:
        multiply_group<1, N>(work, panel);
        break;
      case 2:
        multiply_group<2, N>(work, panel);
        break;
      case 3:
        multiply_group<3, N>(work, panel);
        break;
      case 4:
        multiply_group<4, N>(work, panel);
        break;
      default:
        multiply_group<kGroupPanels<N>, N>(work, panel);
    }
  }
}

// Memory of a thread: parts where it makes its own, then what int8 weights need.
static int64_t own_parts_bytes(const Cut& cut) { return cut.shares_parts() ? 0 : cut.block_tiles * cut.tile_bytes(); }

int64_t tile_linear_scratch_bytes(const TgkLinear& a, int64_t num_rows, int num_threads) {
  const Cut cut(a, num_rows, num_threads);
  const int64_t sums_bytes = cut.block_tiles * kSums * (int64_t)sizeof(float);
  const int64_t int8_bytes = group_panels(a.x_parts) * (2 * cut.scale_steps * kTileBytes + sums_bytes);
  return own_parts_bytes(cut) + (a.format == TGK_I8 ? int8_bytes : 0);
}

// Memory of all threads: two blocks' parts. While some threads still multiply with one, others make the next.
int64_t tile_linear_shared_bytes(const TgkLinear& a, int64_t num_rows, int num_threads) {
  const Cut cut(a, num_rows, num_threads);
  return cut.shares_parts() ? 2 * cut.row_parts * cut.block_tiles * cut.tile_bytes() : 0;
}

// Whether a weight is multiplied by tiles: a rule that does not ask for rows, since results differ in the last bits.
bool takes_tiles(const TgkLinear& a) {
  return a.format == TGK_BF16 || (a.format == TGK_I8 && a.group_size % kTileK == 0);
}

template <int N>
void tile_linear_of(const TgkLinear& a, int64_t num_rows, Team& team, int thread) {
  const int num_threads = team.size();
  const Cut cut(a, num_rows, num_threads);
  const bool shares = cut.shares_parts(), multiplies = thread < cut.row_parts * cut.column_parts;
  if (!multiplies && !shares) return;
  const int64_t row_part = thread / cut.column_parts;
  const Span panels = part_of(ceil_div(a.out_features, kLanes), thread % cut.column_parts, cut.column_parts);
  // Blocks are all threads' together, or this thread's.
  const Span tiles = shares ? Span{0, cut.num_tiles} : part_of(cut.num_tiles, row_part, cut.row_parts);
  const int64_t block_tiles = cut.block_tiles * (shares ? cut.row_parts : 1);
  char* own = team.scratch(thread, 0);
  char* parts = shares ? team.scratch(num_threads, 0) : own;
  if (multiplies) configure_tiles(cut.tile_rows, kWeights);
  int64_t turn = 0;
  for (int64_t first = tiles.begin; first < tiles.end; first += block_tiles) {
    const int64_t count = smaller(block_tiles, tiles.end - first);
    const Span part = shares ? part_of(count, row_part, cut.row_parts) : Span{0, count};
    for (int64_t step = 0; step < cut.num_steps; step += cut.piece_steps) {
      const Span steps = {step, smaller(step + cut.piece_steps, cut.num_steps)};
      const int64_t items = count * (steps.end - steps.begin);
      char* block = parts + turn * block_tiles * cut.tile_bytes();
      split_tiles<N>(a, cut, first, steps, shares ? part_of(items, thread, num_threads) : Span{0, items}, block);
      if (shares) {
        team.barrier();
        turn ^= 1;
      }
      if (multiplies)
        multiply_panels<N>({a, cut, {first + part.begin, first + part.end}, steps, block + part.begin * cut.tile_bytes(),
                            own + own_parts_bytes(cut)}, panels);
    }
  }
  if (multiplies) release_tiles();
}

void tile_linear(const TgkLinear& a, int64_t num_rows, Team& team, int thread) {
  if (!num_rows) return;
  if (a.x_parts == 2)
    tile_linear_of<2>(a, num_rows, team, thread);
  else
    tile_linear_of<3>(a, num_rows, team, thread);
}

}  // namespace TGK_ISA
}  // namespace tgk
