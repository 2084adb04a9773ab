// x @ weight.T over packed panels, for one row up to whole prompts.
//
// One pass over a weight for as many rows as fit the registers: then it is memory that counts, and each panel is read
// once. Many rows take several passes over a piece of a few panels that becomes float32 once and stays in the first
// cache. Threads share out panels, and rows too where there are more threads than panels to share.
#pragma once

#include "abi.h"
#include "product.h"

namespace tgk {
namespace TGK_ISA {

// A piece of a few panels that several passes of rows read again and again: it should stay in the first cache.
constexpr int64_t kPieceBytes = 24 * 1024;
// Rows whose piece of x should stay in the second cache.
constexpr int64_t kBlockRows = 192;

struct Tile {
  const float* x;
  int64_t x_stride;
  const char* panels;
  int64_t panel_bytes;
  int64_t size_k;
  const float* scales;  // of the first panel, from the piece's first group on
  int64_t scales_stride;
  int64_t group_size;
  const float* bias;
  float* out;
  int64_t out_stride;
  int64_t columns;  // of all panels, the last may have fewer than sixteen
  bool is_first, is_last;  // piece of k
};

template <class Format, int R, int P>
void compute_tile(const Tile& t) {
  Vec acc[R][P];
  const char* panels[P];
  TGK_UNROLL for (int p = 0; p < P; p++) panels[p] = t.panels + p * t.panel_bytes;
  const int last_columns = (int)(t.columns - (P - 1) * kLanes);
  if (t.is_first) {
    TGK_UNROLL for (int r = 0; r < R; r++) {
      TGK_UNROLL for (int p = 0; p < P; p++) acc[r][p] = zero();
    }
  } else {
    TGK_UNROLL for (int r = 0; r < R; r++) {
      const float* out = t.out + r * t.out_stride;
      TGK_UNROLL for (int p = 0; p < P; p++)
        acc[r][p] = p < P - 1 || last_columns == kLanes ? load(out + p * kLanes) : load_first(out + p * kLanes, last_columns);
    }
  }
  if (Format::kScaled) {
    for (int64_t k = 0, group = 0; k < t.size_k; k += t.group_size, group++) {
      Vec scales[P];
      TGK_UNROLL for (int p = 0; p < P; p++) scales[p] = load(t.scales + p * t.scales_stride + group * kLanes);
      multiply<Format>(acc, t.x + k, t.x_stride, panels, smaller(t.group_size, t.size_k - k), scales);
      TGK_UNROLL for (int p = 0; p < P; p++) panels[p] += panel_bytes<Format>(t.group_size);
    }
  } else {
    multiply<Format>(acc, t.x, t.x_stride, panels, t.size_k);
  }
  TGK_UNROLL for (int p = 0; p < P; p++) {
    const int columns = p < P - 1 ? kLanes : last_columns;
    const bool adds_bias = t.is_last && t.bias;
    const Vec bias = adds_bias ? load_first(t.bias + p * kLanes, columns) : zero();
    TGK_UNROLL for (int r = 0; r < R; r++) {
      const Vec y = adds_bias ? add(acc[r][p], bias) : acc[r][p];
      float* out = t.out + r * t.out_stride + p * kLanes;
      if (columns == kLanes)
        store(out, y);
      else
        store_first(out, y, columns);
    }
  }
}

constexpr int kMaxPanels = 4;
// Rows of one pass: what still leaves two panels (one, with few registers) for each load of x.
constexpr int kMaxRows = kMaxAccumulators >= 24 ? 12 : 6;

constexpr int panels_for(int rows) { return kMaxAccumulators / rows < kMaxPanels ? kMaxAccumulators / rows : kMaxPanels; }

using TileFunction = void (*)(const Tile&);

template <class Format, int R>
TGK_INLINE TileFunction tile_of_panels(int panels) {
  constexpr int most = panels_for(R);
  switch (panels) {
    case 1:
      return compute_tile<Format, R, 1>;
    case 2:
      return compute_tile<Format, R, most < 2 ? most : 2>;
    case 3:
      return compute_tile<Format, R, most < 3 ? most : 3>;
    default:
      return compute_tile<Format, R, most < 4 ? most : 4>;
  }
}

template <class Format>
TileFunction tile_function(int rows, int panels) {
  switch (rows) {
#define TGK_CASE(r) \
  case r:           \
    return tile_of_panels<Format, r <= kMaxRows ? r : 1>(panels);
    TGK_CASE(1)
    TGK_CASE(2)
    TGK_CASE(3)
    TGK_CASE(4)
    TGK_CASE(5)
    TGK_CASE(6)
    TGK_CASE(7)
    TGK_CASE(8)
    TGK_CASE(9)
    TGK_CASE(10)
    TGK_CASE(11)
    TGK_CASE(12)
#undef TGK_CASE
  }
  return nullptr;
}

// Up to so many rows panels are multiplied with as they are stored. More rows share the work of making them float32,
// which AVX-512 does beside its products for nothing: there the smaller piece in the first cache counts for more
// (Sapphire Rapids, bf16: 130 GFLOPS a thread against 127; AVX2 64 against 89).
constexpr int64_t kDirectRows = kMaxAccumulators < 24 ? 12 : kBlockRows;

// Rows [k, k + size_k) of some panels as float32, in which products with them are the same to the last bit.
template <class Format>
TGK_INLINE void convert_piece(const TgkLinear& a, int64_t panel, int num_panels, int64_t k, int64_t size_k, float* out) {
  const int64_t groups = Format::kScaled ? ceil_div(a.in_features, a.group_size) : 1;
  for (int p = 0; p < num_panels; p++) {
    const char* whole = (const char*)a.weight + (panel + p) * panel_bytes<Format>(a.in_features);
    const float* scales = Format::kScaled ? a.scales + (panel + p) * groups * kLanes : nullptr;
    for (int64_t i = k; i < k + size_k; i += Format::kUnit, out += Format::kUnit * kLanes) {
      const char* unit = whole + i / Format::kUnit * Format::kUnitBytes;
      prefetch(unit + kPrefetchBytes);
      Vec w = Format::template at<0>(unit);
      if (Format::kScaled) w = mul(w, load(scales + i / a.group_size * kLanes));
      store(out, w);
      if (Format::kUnit == 2) store(out + kLanes, Format::template at<1>(unit));
    }
  }
}

TGK_INLINE void multiply_rows(TileFunction (*function)(int, int), Tile& t, const TgkLinear& a, Span rows, int64_t passes,
                              int64_t k, int64_t panel, int num_panels) {
  t.x_stride = a.x_stride;
  t.bias = a.bias ? a.bias + panel * kLanes : nullptr;
  t.out_stride = a.out_stride;
  t.columns = smaller(num_panels * kLanes, a.out_features - panel * kLanes);
  t.is_first = k == 0;
  t.is_last = k + t.size_k >= a.in_features;
  for (int64_t pass = 0; pass < passes; pass++) {
    const Span part = part_of(rows.end - rows.begin, pass, passes);
    const int64_t row = rows.begin + part.begin;
    t.x = a.x + row * a.x_stride + k;
    t.out = a.out + row * a.out_stride + panel * kLanes;
    function((int)(part.end - part.begin), num_panels)(t);
  }
}

// A few rows against the panels given, as they are stored.
template <class Format>
TGK_INLINE void linear_direct(const TgkLinear& a, Span rows, Span panels) {
  const int64_t passes = ceil_div(rows.end - rows.begin, kMaxRows);
  const int most_panels = panels_for((int)ceil_div(rows.end - rows.begin, passes));
  Tile t;
  t.panel_bytes = panel_bytes<Format>(a.in_features);
  t.scales_stride = Format::kScaled ? ceil_div(a.in_features, a.group_size) * kLanes : 0;
  t.group_size = a.group_size;
  int64_t piece_k = a.in_features;
  if (passes > 1) {
    const int64_t fitting = kPieceBytes * Format::kUnit / Format::kUnitBytes / most_panels;
    const int64_t unit = Format::kScaled ? a.group_size : Format::kUnit;
    piece_k = larger(fitting / unit, 1) * unit;
  }
  for (int64_t k = 0; k < a.in_features; k += piece_k) {
    t.size_k = smaller(piece_k, a.in_features - k);
    for (int64_t panel = panels.begin; panel < panels.end;) {
      const int num_panels = (int)smaller(most_panels, panels.end - panel);
      t.panels = (const char*)a.weight + panel * t.panel_bytes + panel_bytes<Format>(k);
      t.scales = Format::kScaled ? a.scales + panel * t.scales_stride + k / a.group_size * kLanes : nullptr;
      multiply_rows(tile_function<Format>, t, a, rows, passes, k, panel, num_panels);
      panel += num_panels;
    }
  }
}

// Many rows against the panels given, a piece of which becomes float32 and is used for all of the rows.
template <class Format>
TGK_INLINE void linear_converted(const TgkLinear& a, Span rows, Span panels) {
  alignas(64) float piece[kPieceBytes / sizeof(float)];
  const int64_t passes = ceil_div(rows.end - rows.begin, kMaxRows);
  const int most_panels = panels_for((int)ceil_div(rows.end - rows.begin, passes));
  const int64_t fitting = (int64_t)(sizeof piece / sizeof(float)) / kLanes / most_panels;
  const int64_t pieces = ceil_div(a.in_features, fitting - 1);
  const int64_t piece_k = ceil_div(ceil_div(a.in_features, pieces), 2) * 2;
  Tile t;
  t.scales = nullptr;
  t.scales_stride = t.group_size = 0;
  for (int64_t k = 0; k < a.in_features; k += piece_k) {
    t.size_k = smaller(piece_k, a.in_features - k);
    // Converted row by row of units, a panel is padded to whole ones.
    t.panel_bytes = ceil_div(t.size_k, Format::kUnit) * Format::kUnit * kLanes * (int64_t)sizeof(float);
    t.panels = (const char*)piece;
    for (int64_t panel = panels.begin; panel < panels.end;) {
      const int num_panels = (int)smaller(most_panels, panels.end - panel);
      convert_piece<Format>(a, panel, num_panels, k, t.size_k, piece);
      multiply_rows(tile_function<PanelF32>, t, a, rows, passes, k, panel, num_panels);
      panel += num_panels;
    }
  }
}

template <class Format>
void linear_in_format(const TgkLinear& a, int64_t num_rows, int thread, int num_threads) {
  const int64_t num_panels = ceil_div(a.out_features, kLanes);
  const int64_t column_parts = smaller(num_threads, ceil_div(num_panels, kMaxPanels));
  const int64_t row_parts = larger(1, smaller(num_threads / column_parts, num_rows / 32));
  if (thread >= column_parts * row_parts) return;
  const Span panels = part_of(num_panels, thread % column_parts, column_parts);
  const Span rows = part_of(num_rows, thread / column_parts, row_parts);
  for (int64_t row = rows.begin; row < rows.end; row += kBlockRows) {
    const Span block = {row, smaller(row + kBlockRows, rows.end)};
    if (block.end - block.begin <= kDirectRows)
      linear_direct<Format>(a, block, panels);
    else
      linear_converted<Format>(a, block, panels);
  }
}

void linear(const TgkLinear& a, int64_t num_rows, int thread, int num_threads) {
  switch (a.format) {
    case TGK_F32:
      return linear_in_format<PanelF32>(a, num_rows, thread, num_threads);
    case TGK_BF16:
      return linear_in_format<PanelBF16>(a, num_rows, thread, num_threads);
    case TGK_F16:
      return linear_in_format<PanelF16>(a, num_rows, thread, num_threads);
    case TGK_I8:
      return linear_in_format<PanelI8>(a, num_rows, thread, num_threads);
  }
}

}  // namespace TGK_ISA
}  // namespace tgk
