// Causal attention over the paged cache: prompts, chunks and decode rows in one way.
//
// A context is cut into parts of kPartTokens positions, at the same places for every query. In a part a query's scores
// are computed, their exponentials relative to the part's own maximum, and the weighted sum of values, token by token in
// order; the parts are then merged from first to last. So a query's result depends on its position alone: not on the
// chunk it came in, nor on its neighbours, nor on how parts were shared out to threads. Keys beyond a query count as
// exact zeros, and values beyond the last query of a tile are never read.
#pragma once

#include "abi.h"
#include "cache.h"
#include "linear.h"
#include "team.h"

namespace tgk {
namespace TGK_ISA {

constexpr int64_t kPartTokens = 128;
// Rows (a query of one head each) that share each load of keys and values.
constexpr int64_t kTileRows = 24;

// Sizes of one attention op that do not depend on the step.
struct AttentionShape {
  int64_t group_size;     // query heads of a key/value head
  int64_t head_dim;       // padded
  int64_t tile_queries;   // at most, in a tile
  int64_t tile_rows;      // tile_queries * group_size
  int64_t partial_floats; // of a tile's rows in one part: maximum, sum, weighted values

  explicit AttentionShape(const TgkAttention& a)
      : group_size(a.num_heads / a.cache.num_kv_heads),
        head_dim(padded_head_dim(a.cache.head_dim)),
        tile_queries(larger(1, kTileRows / group_size)),
        tile_rows(tile_queries * group_size),
        partial_floats(tile_rows * (head_dim + 2)) {}
};

// Some neighbouring queries of one row of the step, with one key/value head.
struct QueryTile {
  int64_t row, first_token, num_queries, kv_head;
};

struct Workspace {
  float* q;        // [tile_rows, head_dim], scaled
  float* scores;   // [tile_rows, kPartTokens]
  float* partial;  // of the part at hand
  float* merged;   // of the parts so far

  Workspace(char* memory, const AttentionShape& shape) {
    q = (float*)memory;
    scores = q + shape.tile_rows * shape.head_dim;
    partial = scores + shape.tile_rows * kPartTokens;
    merged = partial + shape.partial_floats;
  }
  static int64_t floats(const AttentionShape& shape) {
    return shape.tile_rows * (shape.head_dim + kPartTokens) + 2 * shape.partial_floats;
  }
};

TGK_INLINE int64_t num_tiles(const TgkStep& step, int64_t row, const AttentionShape& shape) {
  return ceil_div(step.cu_seqlens_q[row + 1] - step.cu_seqlens_q[row], shape.tile_queries);
}

// The parts that the last query of any tile needs.
TGK_INLINE int64_t most_parts(const TgkStep& step) {
  int64_t most = 0;
  for (int64_t row = 0; row < step.num_rows; row++) most = larger(most, ceil_div(step.kv_lens[row], kPartTokens));
  return most;
}

TGK_INLINE int64_t num_items(const TgkAttention& a, const TgkStep& step, const AttentionShape& shape) {
  int64_t count = 0;
  for (int64_t row = 0; row < step.num_rows; row++) count += num_tiles(step, row, shape);
  return count * a.cache.num_kv_heads;
}

// Few tiles with long contexts: threads share out parts instead of tiles, and merge afterwards.
TGK_INLINE bool is_split(const TgkAttention& a, const TgkStep& step, const AttentionShape& shape, int num_threads) {
  return num_threads > 1 && most_parts(step) > 1 && num_items(a, step, shape) < 4 * num_threads;
}

// The positions that the tile's query i sees.
TGK_INLINE int64_t num_visible(const TgkStep& step, const QueryTile& tile, int64_t query) {
  return step.kv_lens[tile.row] - step.cu_seqlens_q[tile.row + 1] + tile.first_token + query + 1;
}

template <class Format>
TGK_INLINE Piece<Format> piece_at(const TgkAttention& a, const TgkStep& step, const QueryTile& tile, int64_t index) {
  const int64_t in_block = a.cache.block_size / kLanes;
  const int64_t block = step.block_tables[tile.row * step.max_blocks + index / in_block];
  return Piece<Format>(a.cache, block, tile.kv_head, index % in_block);
}

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
    for (int64_t i = 0; i < width; i += kLanes) store(row + i, exponential(sub(load(row + i), maximum)));
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

// Maximum, sum and weighted values of each row of the tile over one part. Rows that see none of it get no meaning.
template <class Format>
void attend_part(const TgkAttention& a, const TgkStep& step, const AttentionShape& shape, const QueryTile& tile, int64_t part,
                 const Workspace& work, float* partial) {
  const int64_t first = part * kPartTokens;
  const int64_t num_rows = tile.num_queries * shape.group_size;
  const int64_t num_tokens = smaller(kPartTokens, num_visible(step, tile, tile.num_queries - 1) - first);
  const int64_t num_pieces = ceil_div(num_tokens, kLanes);
  alignas(Piece<Format>) char memory[sizeof(Piece<Format>) * (kPartTokens / kLanes)];
  Piece<Format>* pieces = (Piece<Format>*)memory;
  for (int64_t i = 0; i < num_pieces; i++) pieces[i] = piece_at<Format>(a, step, tile, first / kLanes + i);
  float *maxima = partial, *sums = maxima + shape.tile_rows, *values = sums + shape.tile_rows;
  const int64_t passes = ceil_div(num_rows, kAttentionRows);
  for (int64_t pass = 0; pass < passes; pass++) {
    const Span rows = part_of(num_rows, pass, passes);
    int64_t visible[kAttentionRows] = {0};
    for (int64_t r = rows.begin; r < rows.end; r++)
      visible[r - rows.begin] = num_visible(step, tile, r / shape.group_size) - first;
#define TGK_CASE(R)                                                                                                   \
  case R:                                                                                                             \
    attend_rows<Format, R>(pieces, num_tokens, shape.head_dim, work.q + rows.begin * shape.head_dim,                  \
                           visible, work.scores + rows.begin * kPartTokens, maxima + rows.begin, sums + rows.begin,   \
                           values + rows.begin * shape.head_dim);                                                     \
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

// Takes the next part's numbers into those of the parts before it.
TGK_INLINE void merge_part(const TgkStep& step, const AttentionShape& shape, const QueryTile& tile, int64_t part,
                           const float* partial, float* merged) {
  const int64_t rows = shape.tile_rows, size = shape.head_dim;
  for (int64_t r = 0; r < tile.num_queries * shape.group_size; r++) {
    if (num_visible(step, tile, r / shape.group_size) <= part * kPartTokens) continue;
    float *maximum = merged + r, *sum = merged + rows + r, *values = merged + 2 * rows + r * size;
    const float *next = partial + 2 * rows + r * size;
    if (part == 0) {
      *maximum = partial[r];
      *sum = partial[rows + r];
      for (int64_t i = 0; i < size; i += kLanes) store(values + i, load(next + i));
      continue;
    }
    const float largest = partial[r] > *maximum ? partial[r] : *maximum;
    const Vec old_factor = exponential(splat(*maximum - largest)), factor = exponential(splat(partial[r] - largest));
    float old_scale[kLanes], scale[kLanes];
    store(old_scale, old_factor);
    store(scale, factor);
    *sum = *sum * old_scale[0] + partial[rows + r] * scale[0];
    *maximum = largest;
    for (int64_t i = 0; i < size; i += kLanes)
      store(values + i, fma(load(values + i), old_factor, mul(load(next + i), factor)));
  }
}

template <class Format>
void attention_tile(const TgkAttention& a, const TgkStep& step, const AttentionShape& shape, const QueryTile& tile,
                    const Workspace& work, float* partials, int64_t first_part, int64_t end_part) {
  for (int64_t query = 0; query < tile.num_queries; query++)
    for (int64_t head = 0; head < shape.group_size; head++) {
      const float* q =
          a.q + (tile.first_token + query) * a.q_stride + (tile.kv_head * shape.group_size + head) * a.cache.head_dim;
      float* row = work.q + (query * shape.group_size + head) * shape.head_dim;
      for (int64_t i = 0; i < shape.head_dim; i += kLanes) {
        const int64_t count = smaller(kLanes, a.cache.head_dim - i);
        store(row + i, mul(count == kLanes ? load(q + i) : load_first(q + i, (int)count), splat(a.scale)));
      }
    }
  for (int64_t part = first_part; part < end_part; part++) {
    if (partials) {
      attend_part<Format>(a, step, shape, tile, part, work, partials + part * shape.partial_floats);
    } else {
      attend_part<Format>(a, step, shape, tile, part, work, work.partial);
      merge_part(step, shape, tile, part, work.partial, work.merged);
    }
  }
}

TGK_INLINE void write_tile(const TgkAttention& a, const AttentionShape& shape, const QueryTile& tile, const float* merged) {
  for (int64_t r = 0; r < tile.num_queries * shape.group_size; r++) {
    const float* values = merged + 2 * shape.tile_rows + r * shape.head_dim;
    const Vec sum = splat(merged[shape.tile_rows + r]);
    float* out = a.out + (tile.first_token + r / shape.group_size) * a.out_stride +
                 (tile.kv_head * shape.group_size + r % shape.group_size) * a.cache.head_dim;
    for (int64_t i = 0; i < a.cache.head_dim; i += kLanes) {
      const int64_t count = smaller(kLanes, a.cache.head_dim - i);
      const Vec y = div(load(values + i), sum);
      if (count == kLanes)
        store(out + i, y);
      else
        store_first(out + i, y, (int)count);
    }
  }
}

TGK_INLINE int64_t parts_of(const TgkStep& step, const QueryTile& tile) {
  return ceil_div(num_visible(step, tile, tile.num_queries - 1), kPartTokens);
}

int64_t attention_scratch_bytes(const TgkAttention& a) { return Workspace::floats(AttentionShape(a)) * sizeof(float); }

int64_t attention_shared_bytes(const TgkAttention& a, const TgkStep& step, int num_threads) {
  const AttentionShape shape(a);
  if (!is_split(a, step, shape, num_threads)) return 0;
  return num_items(a, step, shape) * most_parts(step) * shape.partial_floats * sizeof(float);
}

// Calls visit(item, tile) for each tile and key/value head, in order.
template <class Visit>
TGK_INLINE void each_item(const TgkAttention& a, const TgkStep& step, const AttentionShape& shape, Visit visit) {
  int64_t item = 0;
  for (int64_t row = 0; row < step.num_rows; row++) {
    const int64_t begin = step.cu_seqlens_q[row], end = step.cu_seqlens_q[row + 1];
    for (int64_t token = begin; token < end; token += shape.tile_queries)
      for (int64_t head = 0; head < a.cache.num_kv_heads; head++)
        visit(item++, QueryTile{row, token, smaller(shape.tile_queries, end - token), head});
  }
}

template <class Format>
void attention_in_format(const TgkAttention& a, const TgkStep& step, Team& team, int thread) {
  const AttentionShape shape(a);
  const Workspace work(team.scratch(thread, 0), shape);
  const int num_threads = team.size();
  if (!is_split(a, step, shape, num_threads)) {
    each_item(a, step, shape, [&](int64_t item, const QueryTile& tile) {
      if (item % num_threads != thread) return;
      attention_tile<Format>(a, step, shape, tile, work, nullptr, 0, parts_of(step, tile));
      write_tile(a, shape, tile, work.merged);
    });
    return;
  }
  float* shared = (float*)team.scratch(num_threads, 0);
  const int64_t stride = most_parts(step) * shape.partial_floats;
  int64_t turn = 0;
  each_item(a, step, shape, [&](int64_t item, const QueryTile& tile) {
    for (int64_t part = 0; part < parts_of(step, tile); part++)
      if (turn++ % num_threads == thread)
        attention_tile<Format>(a, step, shape, tile, work, shared + item * stride, part, part + 1);
  });
  team.barrier();
  each_item(a, step, shape, [&](int64_t item, const QueryTile& tile) {
    if (item % num_threads != thread) return;
    for (int64_t part = 0; part < parts_of(step, tile); part++)
      merge_part(step, shape, tile, part, shared + item * stride + part * shape.partial_floats, work.merged);
    write_tile(a, shape, tile, work.merged);
  });
}

void attention(const TgkAttention& a, const TgkStep& step, Team& team, int thread) {
  if (a.cache.format == TGK_BF16)
    attention_in_format<PanelBF16>(a, step, team, thread);
  else
    attention_in_format<PanelF32>(a, step, team, thread);
}

}  // namespace TGK_ISA
}  // namespace tgk
