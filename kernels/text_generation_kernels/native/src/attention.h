// Attention by vectors: token by token in order, for scores as for weighted values.
#pragma once

#include "attention_frame.h"
#include "linear.h"

namespace tgk {
namespace TGK_ISA {

// scores[r] = q[r] . keys, for P pieces of sixteen tokens.
template <class Format, int R, int P>
TGK_INLINE void score_rows(const float* q, int64_t head_dim, const char* const (&keys)[P], float* scores) {
  Vec acc[R][P];
  TGK_UNROLL for (int r = 0; r < R; r++) {
    TGK_UNROLL for (int p = 0; p < P; p++) acc[r][p] = zero();
  }
  multiply<Format>(acc, q, head_dim, keys, head_dim);
  TGK_UNROLL for (int r = 0; r < R; r++) {
    TGK_UNROLL for (int p = 0; p < P; p++) store(scores + r * kPartTokens + p * kLanes, acc[r][p]);
  }
}

// Rows whose sums fit the registers together.
constexpr int kAttentionRows = 6;

template <class Format, int R>
void attend_rows(const Piece<Format>* pieces, int64_t num_tokens, int64_t head_dim, const float* q,
                 const int64_t* visible, float* scores, float* maxima, float* sums, float* values) {
  constexpr int most = panels_for(R);
  const int64_t num_pieces = ceil_div(num_tokens, kLanes);
  int64_t piece = 0;
  for (; piece + most <= num_pieces; piece += most) {
    const char* keys[most];
    TGK_UNROLL for (int p = 0; p < most; p++) keys[p] = pieces[piece + p].keys;
    score_rows<Format, R, most>(q, head_dim, keys, scores + piece * kLanes);
  }
  for (; piece < num_pieces; piece++) {
    const char* const keys[1] = {pieces[piece].keys};
    score_rows<Format, R, 1>(q, head_dim, keys, scores + piece * kLanes);
  }

  const int64_t width = num_pieces * kLanes;
  for (int r = 0; r < R; r++) {
    float* row = scores + r * kPartTokens;
    const int64_t seen = smaller(larger(visible[r], 0), num_tokens);
    for (int64_t i = seen; i < width; i++) row[i] = -__builtin_inff();
    Vec largest = splat(-__builtin_inff()), sum = zero();
    for (int64_t i = 0; i < width; i += kLanes) largest = max(largest, load(row + i));
    maxima[r] = largest_of_lanes(largest);
    const Vec maximum = splat(maxima[r]);
    for (int64_t i = 0; i < width; i += kLanes) store(row + i, power_of_two(sub(load(row + i), maximum)));
    for (int64_t i = seen; i < width; i++) row[i] = 0.0f;
    for (int64_t i = 0; i < width; i += kLanes) sum = add(sum, load(row + i));
    sums[r] = sum_of_lanes(sum);
  }

  for (int64_t d = 0; d < head_dim;) {
    const bool is_wide = d + most * kLanes <= head_dim;
    Vec acc[R][most];
    TGK_UNROLL for (int r = 0; r < R; r++) {
      TGK_UNROLL for (int p = 0; p < most; p++) acc[r][p] = zero();
    }
    if (is_wide) {
      for (int64_t i = 0; i < num_pieces; i++) {
        const char* panels[most];
        TGK_UNROLL for (int p = 0; p < most; p++) panels[p] = pieces[i].values_panel(d / kLanes + p);
        multiply<Format>(acc, scores + i * kLanes, kPartTokens, panels, smaller(kLanes, num_tokens - i * kLanes));
      }
      TGK_UNROLL for (int r = 0; r < R; r++) {
        TGK_UNROLL for (int p = 0; p < most; p++) store(values + r * head_dim + d + p * kLanes, acc[r][p]);
      }
      d += most * kLanes;
    } else {
      Vec one[R][1];
      TGK_UNROLL for (int r = 0; r < R; r++) one[r][0] = zero();
      for (int64_t i = 0; i < num_pieces; i++) {
        const char* const panels[1] = {pieces[i].values_panel(d / kLanes)};
        multiply<Format>(one, scores + i * kLanes, kPartTokens, panels, smaller(kLanes, num_tokens - i * kLanes));
      }
      TGK_UNROLL for (int r = 0; r < R; r++) store(values + r * head_dim + d, one[r][0]);
      d += kLanes;
    }
  }
}

template <class Format>
class VectorAttention {
 public:
  // Rows that share each load of keys and values.
  static constexpr int64_t kRows = 24;

  VectorAttention(const Attention& op, char* scratch)
      : op_(op), q_((float*)scratch), scores_(q_ + op.tile_rows * op.head_dim) {}
  static int64_t scratch_bytes(const Attention& op) {
    return op.tile_rows * (op.head_dim + kPartTokens) * (int64_t)sizeof(float);
  }

  void begin(const QueryTile& tile) {
    float* row = q_;
    for (int64_t query = 0; query < tile.num_queries; query++)
      for (int64_t head = 0; head < op_.group_size; head++, row += op_.head_dim)
        for (int64_t i = 0; i < op_.head_dim; i += kLanes) store(row + i, scaled(op_, op_.query(tile, query, head), i));
  }

  void attend(const QueryTile& tile, int64_t part, float* partial) {
    const int64_t first = part * kPartTokens, num_rows = op_.num_rows(tile), num_tokens = op_.num_tokens(tile, part);
    alignas(Piece<Format>) char memory[sizeof(Piece<Format>) * kPartPieces];
    Piece<Format>* pieces = (Piece<Format>*)memory;
    for (int64_t i = 0; i < ceil_div(num_tokens, kLanes); i++)
      pieces[i] = op_.template piece<Format>(tile, part * kPartPieces + i);
    float *maxima = partial, *sums = maxima + op_.tile_rows, *values = sums + op_.tile_rows;
    const int64_t passes = ceil_div(num_rows, kAttentionRows);
    for (int64_t pass = 0; pass < passes; pass++) {
      const Span rows = part_of(num_rows, pass, passes);
      int64_t visible[kAttentionRows] = {0};
      for (int64_t r = rows.begin; r < rows.end; r++)
        visible[r - rows.begin] = op_.num_visible(tile, r / op_.group_size) - first;
#define TGK_CASE(R)                                                                                            \
  case R:                                                                                                      \
    attend_rows<Format, R>(pieces, num_tokens, op_.head_dim, q_ + rows.begin * op_.head_dim, visible,          \
                           scores_ + rows.begin * kPartTokens, maxima + rows.begin, sums + rows.begin,         \
                           values + rows.begin * op_.head_dim);                                                \
    break;
      switch (rows.end - rows.begin) {
        TGK_CASE(1)
        TGK_CASE(2)
        TGK_CASE(3)
        TGK_CASE(4)
        TGK_CASE(5)
        TGK_CASE(6)
      }
#undef TGK_CASE
    }
  }

  void end() {}

 private:
  const Attention& op_;
  float* q_;       // [tile_rows, head_dim], scaled
  float* scores_;  // [tile_rows, kPartTokens]
};

int64_t attention_scratch_bytes(const TgkAttention& a, const TgkStep& step) {
  return attention_scratch<VectorAttention<PanelF32>>(a, step);
}

int64_t attention_shared_bytes(const TgkAttention& a, const TgkStep& step, int num_threads) {
  return attention_shared<VectorAttention<PanelF32>>(a, step, num_threads);
}

void attention(const TgkAttention& a, const TgkStep& step, Team& team, int thread) {
  if (a.cache.format == TGK_BF16)
    attend_by<VectorAttention<PanelBF16>>(a, step, team, thread);
  else
    attend_by<VectorAttention<PanelF32>>(a, step, team, thread);
}

}  // namespace TGK_ISA
}  // namespace tgk
