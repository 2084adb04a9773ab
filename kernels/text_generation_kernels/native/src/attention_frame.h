// Causal attention over the paged cache: how queries are put into tiles, contexts into parts, and both onto threads.
//
// A context is cut into parts of kPartTokens positions, at the same places for every query. In a part a query's scores
// are computed, their exponentials relative to the part's own maximum, and the weighted sum of values; the parts are
// then merged from first to last. So a query's result depends on its position alone: not on the chunk it came in, nor on
// its neighbours, nor on how parts were shared out to threads. Keys beyond a query count as exact zeros, and values
// beyond the last query of a tile are never used. Scores are in units of ln 2, so that 2^x serves for e^x.
//
// How a part is computed is a method's: of vectors (attention.h) or of tiles (tile_attention.h). A method has
//   Method(const Attention&, char* scratch), scratch_bytes(const Attention&) and kRows, the most rows of a tile unless a
//   single query has more;
//   begin(tile): takes a tile's queries;
//   attend(tile, part, partial): writes maximum, sum and weighted values of each row over one part. Rows that see none of
//   it get no meaning;
//   end(): nothing more comes.
#pragma once

#include "abi.h"
#include "cache.h"
#include "team.h"

namespace tgk {
namespace TGK_ISA {

constexpr int64_t kPartTokens = 128;
constexpr int64_t kPartPieces = kPartTokens / kLanes;

// Some neighbouring queries of one row of the step, with one key/value head. A row of the tile is a query of one head.
struct QueryTile {
  int64_t row, first_token, num_queries, kv_head;
};

// Sizes of one attention op.
struct Attention {
  const TgkAttention& a;
  const TgkStep& step;
  int64_t group_size;      // query heads of a key/value head
  int64_t head_dim;        // padded
  int64_t tile_queries;    // at most, in a tile
  int64_t tile_rows;       // room for tile_queries * group_size, in whole sixteens
  int64_t partial_floats;  // of a tile's rows in one part: maximum, sum, weighted values

  Attention(const TgkAttention& attention, const TgkStep& of_step, int64_t most_rows)
      : a(attention),
        step(of_step),
        group_size(a.num_heads / a.cache.num_kv_heads),
        head_dim(padded_head_dim(a.cache.head_dim)),
        tile_queries(larger(1, most_rows / group_size)),
        tile_rows(ceil_div(tile_queries * group_size, kLanes) * kLanes),
        partial_floats(tile_rows * (head_dim + 2)) {}

  int64_t num_rows(const QueryTile& tile) const { return tile.num_queries * group_size; }
  // The positions that the tile's query i sees.
  int64_t num_visible(const QueryTile& tile, int64_t query) const {
    return step.kv_lens[tile.row] - step.cu_seqlens_q[tile.row + 1] + tile.first_token + query + 1;
  }
  // Of a part, the positions that any of the tile's queries sees.
  int64_t num_tokens(const QueryTile& tile, int64_t part) const {
    return smaller(kPartTokens, num_visible(tile, tile.num_queries - 1) - part * kPartTokens);
  }
  int64_t num_parts(const QueryTile& tile) const {
    return ceil_div(num_visible(tile, tile.num_queries - 1), kPartTokens);
  }
  // About what a tile takes, in units of a position and row. Positions are read once for all rows, which is as long as
  // some rows take; and rows are put in and taken out, which is as long as some positions take.
  int64_t cost(const QueryTile& tile) const {
    return (num_visible(tile, tile.num_queries - 1) + 64) * (num_rows(tile) + 32);
  }
  // The parts that the last query of any tile needs.
  int64_t most_parts() const {
    int64_t most = 0;
    for (int64_t row = 0; row < step.num_rows; row++) most = larger(most, ceil_div(step.kv_lens[row], kPartTokens));
    return most;
  }
  int64_t num_items() const {
    int64_t count = 0;
    for (int64_t row = 0; row < step.num_rows; row++)
      count += ceil_div(step.cu_seqlens_q[row + 1] - step.cu_seqlens_q[row], tile_queries);
    return count * a.cache.num_kv_heads;
  }
  // Few tiles with long contexts: threads share out parts instead of tiles, and merge afterwards.
  bool is_split(int num_threads) const { return num_threads > 1 && most_parts() > 1 && num_items() < 4 * num_threads; }

  // A row's numbers, of which the cache's head_dim are given: of the tile's query i, and of its head h.
  const float* query(const QueryTile& tile, int64_t i, int64_t h) const {
    return a.q + (tile.first_token + i) * a.q_stride + (tile.kv_head * group_size + h) * a.cache.head_dim;
  }
  float* out(const QueryTile& tile, int64_t i, int64_t h) const {
    return a.out + (tile.first_token + i) * a.out_stride + (tile.kv_head * group_size + h) * a.cache.head_dim;
  }
  // What q is multiplied with.
  float scale() const { return a.scale * 1.44269504f; }

  // Sixteen positions, from 16 * index on.
  template <class Format>
  Piece<Format> piece(const QueryTile& tile, int64_t index) const {
    const int64_t in_block = a.cache.block_size / kLanes;
    const int64_t block = step.block_tables[tile.row * step.max_blocks + index / in_block];
    return Piece<Format>(a.cache, block, tile.kv_head, index % in_block);
  }
};

// 16 scaled numbers of a row, from i on; zeros beyond the head.
TGK_INLINE Vec scaled(const Attention& op, const float* query, int64_t i) {
  const int64_t count = smaller(kLanes, op.a.cache.head_dim - i);
  return mul(count == kLanes ? load(query + i) : load_first(query + i, (int)count), splat(op.scale()));
}

// Takes the numbers of a part that is not the first into those of the parts before it.
TGK_INLINE void merge_part(const Attention& op, const QueryTile& tile, int64_t part, const float* partial, float* merged) {
  const int64_t rows = op.tile_rows, size = op.head_dim;
  for (int64_t query = 0, r = 0; query < tile.num_queries; query++) {
    const bool sees = op.num_visible(tile, query) > part * kPartTokens;
    for (const int64_t end = r + op.group_size; r < end; r++) {
      if (!sees) continue;
      float *maximum = merged + r, *sum = merged + rows + r, *values = merged + 2 * rows + r * size;
      const float* next = partial + 2 * rows + r * size;
      const float largest = partial[r] > *maximum ? partial[r] : *maximum;
      const Vec old_factor = power_of_two(splat(*maximum - largest)), factor = power_of_two(splat(partial[r] - largest));
      *sum = *sum * first_lane(old_factor) + partial[rows + r] * first_lane(factor);
      *maximum = largest;
      for (int64_t i = 0; i < size; i += kLanes)
        store(values + i, fma(load(values + i), old_factor, mul(load(next + i), factor)));
    }
  }
}

TGK_INLINE void write_tile(const Attention& op, const QueryTile& tile, const float* merged) {
  const float *sums = merged + op.tile_rows, *values = sums + op.tile_rows;
  for (int64_t query = 0; query < tile.num_queries; query++)
    for (int64_t head = 0; head < op.group_size; head++, sums++, values += op.head_dim) {
      const Vec sum = splat(*sums);
      float* out = op.out(tile, query, head);
      for (int64_t i = 0; i < op.a.cache.head_dim; i += kLanes) {
        const int64_t count = smaller(kLanes, op.a.cache.head_dim - i);
        const Vec y = div(load(values + i), sum);
        if (count == kLanes)
          store(out + i, y);
        else
          store_first(out + i, y, (int)count);
      }
    }
}

// Calls visit(item, tile) for each tile and key/value head, in order.
template <class Visit>
TGK_INLINE void each_item(const Attention& op, Visit visit) {
  int64_t item = 0;
  for (int64_t row = 0; row < op.step.num_rows; row++) {
    const int64_t begin = op.step.cu_seqlens_q[row], end = op.step.cu_seqlens_q[row + 1];
    for (int64_t token = begin; token < end; token += op.tile_queries)
      for (int64_t head = 0; head < op.a.cache.num_kv_heads; head++)
        visit(item++, QueryTile{row, token, smaller(op.tile_queries, end - token), head});
  }
}

// Calls visit(item, tile) for a thread's share of the items. Neighbours, whose keys and values lie side by side, stay
// together; shares are of about equal work.
template <class Visit>
TGK_INLINE void each_of_share(const Attention& op, int thread, int num_threads, Visit visit) {
  int64_t total = 0, before = 0;
  each_item(op, [&](int64_t, const QueryTile& tile) { total += op.cost(tile); });
  each_item(op, [&](int64_t item, const QueryTile& tile) {
    const int64_t cost = op.cost(tile);
    if ((2 * before + cost) * num_threads / (2 * total) == thread) visit(item, tile);
    before += cost;
  });
}

// Of a thread: partial and merged numbers, then the method's.
template <class Method>
int64_t attention_scratch(const TgkAttention& a, const TgkStep& step) {
  const Attention op(a, step, Method::kRows);
  return 2 * op.partial_floats * (int64_t)sizeof(float) + Method::scratch_bytes(op);
}

template <class Method>
int64_t attention_shared(const TgkAttention& a, const TgkStep& step, int num_threads) {
  const Attention op(a, step, Method::kRows);
  if (!op.is_split(num_threads)) return 0;
  return op.num_items() * op.most_parts() * op.partial_floats * (int64_t)sizeof(float);
}

template <class Method>
void attend_by(const TgkAttention& a, const TgkStep& step, Team& team, int thread) {
  const Attention op(a, step, Method::kRows);
  const int num_threads = team.size();
  float* partial = (float*)team.scratch(thread, 0);
  float* merged = partial + op.partial_floats;
  Method method(op, (char*)(merged + op.partial_floats));
  if (!op.is_split(num_threads)) {
    each_of_share(op, thread, num_threads, [&](int64_t, const QueryTile& tile) {
      method.begin(tile);
      method.attend(tile, 0, merged);
      for (int64_t part = 1; part < op.num_parts(tile); part++) {
        method.attend(tile, part, partial);
        merge_part(op, tile, part, partial, merged);
      }
      write_tile(op, tile, merged);
    });
    method.end();
    return;
  }
  float* shared = (float*)team.scratch(num_threads, 0);
  const int64_t stride = op.most_parts() * op.partial_floats;
  int64_t turn = 0;
  each_item(op, [&](int64_t item, const QueryTile& tile) {
    bool has_begun = false;
    for (int64_t part = 0; part < op.num_parts(tile); part++) {
      if (turn++ % num_threads != thread) continue;
      if (!has_begun) method.begin(tile);
      has_begun = true;
      method.attend(tile, part, shared + item * stride + part * op.partial_floats);
    }
  });
  method.end();
  team.barrier();
  each_of_share(op, thread, num_threads, [&](int64_t item, const QueryTile& tile) {
    float* parts = shared + item * stride;
    for (int64_t part = 1; part < op.num_parts(tile); part++)
      merge_part(op, tile, part, parts + part * op.partial_floats, parts);
    write_tile(op, tile, parts);
  });
}

}  // namespace TGK_ISA
}  // namespace tgk
