// Attention by tile products of bfloat16, over a cache of bfloat16.
//
// Queries are cut into two bfloat16 parts (parts.h), and so are the exponentials that values are weighted with: what that
// loses is hundreds of times less than what keys and values have lost on their way into the cache. Keys of sixteen tokens
// are tiles as they lie in the cache. Values are copied into tiles of 32 tokens, once for all rows of a query tile, with
// zeros for what none of them sees. Each sum is made in one order: 32 dimensions (tokens) after the other, in each the
// parts after each other, for one row as for many.
#pragma once

#include "attention_frame.h"
#include "parts.h"
#include "tiles.h"

namespace tgk {
namespace TGK_ISA {

class TileAttention {
 public:
  static constexpr int64_t kRows = 64;

  TileAttention(const Attention& op, char* scratch)
      : op_(op),
        steps_(op.head_dim / kTileK),
        queries_(scratch),
        values_(queries_ + queries_bytes(op)),
        weights_(values_ + values_bytes(op)),
        scores_((float*)(weights_ + 2 * kWeightsBytes)),
        row_(scores_ + 2 * kScores) {}
  static int64_t scratch_bytes(const Attention& op) {
    return queries_bytes(op) + values_bytes(op) + 2 * kWeightsBytes +
           (2 * kScores + op.head_dim) * (int64_t)sizeof(float);
  }

  void begin(const QueryTile& tile) {
    const int64_t num_rows = op_.num_rows(tile);
    num_tiles_ = ceil_div(num_rows, kTileRows);
    const int64_t tile_rows = ceil_div(num_rows, num_tiles_);
    if (tile_rows != tile_rows_) configure_tiles(tile_rows, kOther);
    tile_rows_ = tile_rows;
    int64_t row_tile = 0, row = 0;
    for (int64_t query = 0; query < tile.num_queries; query++)
      for (int64_t head = 0; head < op_.group_size; head++) {
        const float* q = op_.query(tile, query, head);
        for (int64_t i = 0; i < op_.head_dim; i += kLanes) store(row_ + i, scaled(op_, q, i));
        char* out = queries_of(row_tile) + row * kTileRowBytes;
        for (int64_t step = 0; step < steps_; step++)
          split<kParts>(row_ + step * kTileK, kTileK, out + step * kParts * kTileBytes, kTileBytes);
        if (++row < tile_rows) continue;
        row = 0;
        row_tile++;
      }
  }

  void attend(const QueryTile& tile, int64_t part, float* partial) {
    const int64_t num_tokens = op_.num_tokens(tile, part), num_pieces = ceil_div(num_tokens, kLanes);
    const Pieces pieces(op_, tile, part, num_pieces);
    float *maxima = partial, *sums = maxima + op_.tile_rows, *values = sums + op_.tile_rows;
    // While one row tile's products are made, which takes no other instructions, another's rows are weighed.
    score(0, pieces, [&](int64_t piece, int64_t step) {
      copy_values(pieces, piece, 2 * step, num_tokens);
      copy_values(pieces, piece, 2 * step + 1, num_tokens);
    });
    for (int64_t i = 0; i < num_tiles_; i++) {
      const int64_t first = i * tile_rows_, end = smaller(first + tile_rows_, op_.num_rows(tile));
      const int64_t half = first + (end - first) / 2;
      int64_t row = first;
      const auto weigh_to = [&](int64_t limit) {
        if (row >= limit) return;
        const int64_t visible = op_.num_visible(tile, row / op_.group_size) - part * kPartTokens;
        weigh(i, row - first, visible, num_pieces, maxima + row, sums + row);
        row++;
      };
      if (i + 1 < num_tiles_) score(i + 1, pieces, [&](int64_t, int64_t) { weigh_to(half); });
      if (i > 0) sum_values(i - 1, num_pieces, values, [&] { weigh_to(end); });
      while (row < end) weigh_to(end);
    }
    sum_values(num_tiles_ - 1, num_pieces, values, [] {});
  }

  void end() {
    if (tile_rows_) release_tiles();
    tile_rows_ = 0;
  }

 private:
  static constexpr int kParts = 2;
  // The eight tiles: sums of four pieces or panels, two parts of a row tile, and keys or values.
  static constexpr int kGroup = 4, kFirstPart = kGroup, kOther = kFirstPart + kParts;
  static constexpr int64_t kPartSteps = kPartTokens / kTileK;
  static constexpr int64_t kWeightsBytes = kPartSteps * kParts * kTileBytes;
  static constexpr int64_t kScores = kTileRows * kPartTokens;
  static constexpr int64_t kHalfTileBytes = kTileBytes / 2;  // sixteen tokens by sixteen dimensions

  // Where a part's keys and values lie in the cache.
  struct Pieces {
    const char* keys[kPartPieces];
    const char* values[kPartPieces];
    int64_t count;

    Pieces(const Attention& op, const QueryTile& tile, int64_t part, int64_t num_pieces) : count(num_pieces) {
      for (int64_t i = 0; i < num_pieces; i++) {
        const Piece<PanelBF16> piece = op.piece<PanelBF16>(tile, part * kPartPieces + i);
        keys[i] = piece.keys;
        values[i] = piece.values;
      }
    }
  };

  static int64_t queries_bytes(const Attention& op) {
    return op.tile_rows / kTileRows * (op.head_dim / kTileK) * kParts * kTileBytes;
  }
  static int64_t values_bytes(const Attention& op) { return op.head_dim / kLanes * kPartSteps * kTileBytes; }

  // [steps][kParts] tiles of sixteen rows.
  char* queries_of(int64_t row_tile) const { return queries_ + row_tile * steps_ * kParts * kTileBytes; }
  char* weights_of(int64_t row_tile) const { return weights_ + row_tile % 2 * kWeightsBytes; }
  float* scores_of(int64_t row_tile) const { return scores_ + row_tile % 2 * kScores; }
  // [kPartSteps] tiles of a panel of sixteen dimensions.
  char* values_of(int64_t panel) const { return values_ + panel * kPartSteps * kTileBytes; }

  // The scores of a row tile. Calls beside(piece, step) where products have been begun.
  template <class Beside>
  void score(int64_t row_tile, const Pieces& pieces, Beside beside) {
    for (int64_t first = 0; first < pieces.count; first += kGroup)
      by_count(smaller(kGroup, pieces.count - first), [&](auto count) {
        constexpr int P = decltype(count)::index;
        const char* queries = queries_of(row_tile);
        each_panel<P>([&](auto piece) { zero_tile<decltype(piece)::index>(); });
        for (int64_t step = 0; step < steps_; step++, queries += kParts * kTileBytes) {
          load_tile<kFirstPart>(queries, kTileRowBytes);
          load_tile<kFirstPart + 1>(queries + kTileBytes, kTileRowBytes);
          each_panel<P>([&](auto piece) {
            constexpr int p = decltype(piece)::index;
            load_tile<kOther>(pieces.keys[first + p] + step * kTileBytes, kTileRowBytes);
            accumulate_tiles<p, kFirstPart, kOther>();
            accumulate_tiles<p, kFirstPart + 1, kOther>();
            beside(first + p, step);
          });
        }
        each_panel<P>([&](auto piece) {
          constexpr int p = decltype(piece)::index;
          store_tile<p>(scores_of(row_tile) + (first + p) * kLanes, kPartTokens * sizeof(float));
        });
      });
  }

  // A piece's panel, half a tile. Of the last one, what follows num_tokens becomes zeros, and so does the half beside it.
  void copy_values(const Pieces& pieces, int64_t index, int64_t panel, int64_t num_tokens) {
    const char* from = pieces.values[index] + panel * kHalfTileBytes;
    char* to = values_of(panel) + index * kHalfTileBytes;
    const int64_t count = num_tokens - index * kLanes;
    if (count >= kLanes) {
      TGK_UNROLL for (int64_t i = 0; i < kHalfTileBytes; i += 64) _mm512_store_si512(to + i, _mm512_loadu_si512(from + i));
    } else {
      // Words are of two tokens, the even one low.
      for (int64_t i = 0; i < kLanes / 2; i++) {
        const __mmask32 seen = 2 * i + 1 < count ? 0xffffffffu : 2 * i < count ? 0x55555555u : 0;
        _mm512_store_si512(to + i * 64, _mm512_maskz_loadu_epi16(seen, from + i * 64));
      }
    }
    if (index + 1 == pieces.count && index % 2 == 0) memset(to + kHalfTileBytes, 0, kHalfTileBytes);
  }

  // Scores of a row become weights: 2^(score - the largest), zero for what it does not see.
  __attribute__((noinline)) void weigh(int64_t row_tile, int64_t row, int64_t visible, int64_t num_pieces, float* maximum,
                                       float* sum) {
    const float* scores = scores_of(row_tile) + row * kPartTokens;
    char* weights = weights_of(row_tile) + row * kTileRowBytes;
    const int64_t num_steps = ceil_div(num_pieces, 2);
    const int64_t whole_steps = smaller(larger(visible, 0) / kTileK, num_steps);  // that it sees all of
    Vec largest = splat(-__builtin_inff()), high_largest = largest;
    for (int64_t step = 0; step < whole_steps; step++) {
      largest = max(largest, load(scores + step * kTileK));
      high_largest = max(high_largest, load(scores + step * kTileK + kLanes));
    }
    if (whole_steps < num_steps) {
      const float* rest = scores + whole_steps * kTileK;
      largest.v = _mm512_mask_max_ps(largest.v, seen_of(visible, 2 * whole_steps), largest.v, load(rest).v);
      high_largest.v =
          _mm512_mask_max_ps(high_largest.v, seen_of(visible, 2 * whole_steps + 1), high_largest.v, load(rest + kLanes).v);
    }
    *maximum = largest_of_lanes(max(largest, high_largest));
    const Vec base = splat(*maximum);
    Vec total = zero(), high_total = zero();
    for (int64_t step = 0; step < num_steps; step++, weights += kParts * kTileBytes) {
      Vec low = power_of_two(sub(load(scores + step * kTileK), base));
      Vec high = power_of_two(sub(load(scores + step * kTileK + kLanes), base));
      if (step >= whole_steps) {
        low.v = _mm512_maskz_mov_ps(seen_of(visible, 2 * step), low.v);
        high.v = _mm512_maskz_mov_ps(seen_of(visible, 2 * step + 1), high.v);
      }
      total = add(total, low);
      high_total = add(high_total, high);
      split_positive(low, high, weights, kTileBytes);
    }
    *sum = sum_of_lanes(add(total, high_total));
  }

  static TGK_INLINE __mmask16 seen_of(int64_t visible, int64_t piece) {
    const int64_t count = visible - piece * kLanes;
    return count >= kLanes ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
  }

  // The weighted sums of a row tile. Calls beside() where products have been begun.
  template <class Beside>
  void sum_values(int64_t row_tile, int64_t num_pieces, float* out, Beside beside) {
    const int64_t num_steps = ceil_div(num_pieces, 2), num_panels = op_.head_dim / kLanes;
    out += row_tile * tile_rows_ * op_.head_dim;
    for (int64_t first = 0; first < num_panels; first += kGroup)
      by_count(smaller(kGroup, num_panels - first), [&](auto count) {
        constexpr int P = decltype(count)::index;
        const char* weights = weights_of(row_tile);
        each_panel<P>([&](auto panel) { zero_tile<decltype(panel)::index>(); });
        for (int64_t step = 0; step < num_steps; step++, weights += kParts * kTileBytes) {
          load_tile<kFirstPart>(weights, kTileRowBytes);
          load_tile<kFirstPart + 1>(weights + kTileBytes, kTileRowBytes);
          each_panel<P>([&](auto panel) {
            constexpr int p = decltype(panel)::index;
            load_tile<kOther>(values_of(first + p) + step * kTileBytes, kTileRowBytes);
            accumulate_tiles<p, kFirstPart, kOther>();
            accumulate_tiles<p, kFirstPart + 1, kOther>();
            beside();
          });
        }
        each_panel<P>([&](auto panel) {
          constexpr int p = decltype(panel)::index;
          store_tile<p>(out + (first + p) * kLanes, op_.head_dim * sizeof(float));
        });
      });
  }

  const Attention& op_;
  int64_t steps_;       // of 32 dimensions
  char* queries_;       // [row tiles][steps][kParts] tiles
  char* values_;        // [head_dim / 16][kPartSteps] tiles
  char* weights_;       // of two row tiles: [kPartSteps][kParts] tiles
  float* scores_;       // of two row tiles: [16][kPartTokens]
  float* row_;          // [head_dim]
  int64_t num_tiles_ = 0, tile_rows_ = 0;
};

// Whether attention is by tiles: a rule that does not ask for rows, since results differ in the last bits.
inline bool takes_tiles(const TgkAttention& a) {
  return a.cache.format == TGK_BF16 && padded_head_dim(a.cache.head_dim) % kTileK == 0;
}

}  // namespace TGK_ISA
}  // namespace tgk
