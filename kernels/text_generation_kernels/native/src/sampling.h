// From a row of logits to a token: the best one, the best few, or one drawn after temperature and filters.
//
// Threads share out rows, and for the best one pieces of rows that are cut at fixed places, so that a row's sums have
// one order. No row is sorted: the best few are kept in a heap while the row is read, and a filter's cut is found by the
// bits of its keys, from the highest on. Sums of probabilities are made in float32 over blocks of 256 tokens, and of
// those in double.
//
// A row of NaN, which only a broken model gives, still ends in a token of the vocabulary.
#pragma once

#include <math.h>

#include "abi.h"
#include "team.h"
#include "vector.h"

namespace tgk {
namespace TGK_ISA {

constexpr int64_t kBlock = 256;
// Scores below this have no probability: e^x is not a normal number there.
constexpr float kLowestScore = -87.0f;

// How far a filter of the k best may go with a heap; beyond, the bits of the keys are faster.
constexpr int64_t kLargestHeap = 1024;

TGK_INLINE int64_t padded_size(int64_t size) { return ceil_div(size, kLanes) * kLanes; }

// Up to sixteen numbers from p, `fill` in the other lanes.
TGK_INLINE Vec load_some(const float* p, int64_t count, float fill) {
  if (count >= kLanes) return load(p);
  float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; i++) lanes[i] = i < count ? p[i] : fill;
  return load(lanes);
}

struct Largest {
  float value;
  int64_t id;  // the first of equal ones
};

TGK_INLINE Largest largest_of(const float* row, int64_t size) {
  Largest found{-INFINITY, 0};
  int64_t best_block = 0;
  for (int64_t first = 0; first < size; first += kBlock) {
    const int64_t end = smaller(size, first + kBlock);
    Vec most = splat(-INFINITY);
    for (int64_t i = first; i < end; i += kLanes) most = max(load_some(row + i, end - i, -INFINITY), most);
    const float value = largest_of_lanes(most);
    if (value > found.value) {
      found.value = value;
      best_block = first;
    }
  }
  const int64_t end = smaller(size, best_block + kBlock);
  found.id = best_block;
  for (int64_t i = end - 1; i >= best_block; i--)
    if (row[i] == found.value) found.id = i;
  return found;
}

// A row is cut into pieces at the same places whatever the threads are: each finds its own best token and its sum
// relative to that, while it is in the nearest cache, and pieces are then put together in order.
constexpr int64_t kRowPiece = 8 * kBlock;

struct RowPiece {
  Largest best;
  double sum;  // of e^(logit - best.value); where all are -inf, of their own exponentials: no number or next to nothing
};

TGK_INLINE int64_t pieces_of_row(const TgkMostLikely& a) { return ceil_div(a.vocab_size, kRowPiece); }

TGK_INLINE int64_t most_likely_shared_bytes(const TgkMostLikely& a, int64_t num_rows) {
  return num_rows * pieces_of_row(a) * (int64_t)sizeof(RowPiece);
}

TGK_INLINE RowPiece piece_of(const float* row, int64_t size) {
  RowPiece piece{largest_of(row, size), 0};
  const Vec top = splat(piece.best.value == -INFINITY ? 0.0f : piece.best.value);
  for (int64_t first = 0; first < size; first += kBlock) {
    const int64_t end = smaller(size, first + kBlock);
    Vec sum = zero();
    for (int64_t i = first; i < end; i += kLanes)
      sum = add(sum, exponential(sub(load_some(row + i, end - i, -INFINITY), top)));
    piece.sum += sum_of_lanes(sum);
  }
  return piece;
}

TGK_INLINE void join_pieces(const TgkMostLikely& a, const RowPiece* pieces, int64_t index) {
  const int64_t count = pieces_of_row(a);
  int64_t best = 0;
  for (int64_t i = 1; i < count; i++)
    if (pieces[i].best.value > pieces[best].best.value) best = i;
  const float top = pieces[best].best.value;
  double total = 0;
  // A NaN stays one when it is multiplied by 0; -inf less -inf is one, as a row of nothing else has no probabilities.
  for (int64_t i = 0; i < count; i++) total += pieces[i].sum * exp((double)pieces[i].best.value - top);
  a.ids[index] = best * kRowPiece + pieces[best].best.id;
  a.values[index] = top;
  a.log_sums[index] = (float)log(total);
}

// shared: memory of all threads, of `most_likely_shared_bytes`.
void most_likely(const TgkMostLikely& a, int64_t num_rows, Team& team, int thread, char* shared) {
  RowPiece* pieces = (RowPiece*)shared;
  const int64_t per_row = pieces_of_row(a);
  const Span own = part_of(num_rows * per_row, thread, team.size());
  for (int64_t item = own.begin; item < own.end; item++) {
    const int64_t first = item % per_row * kRowPiece;
    pieces[item] = piece_of(a.logits + item / per_row * a.stride + first, smaller(kRowPiece, a.vocab_size - first));
  }
  team.barrier();
  const Span rows = part_of(num_rows, thread, team.size());
  for (int64_t index = rows.begin; index < rows.end; index++) join_pieces(a, pieces + index * per_row, index);
}

struct Ranked {
  float value;
  int32_t id;
};

TGK_INLINE bool is_worse(Ranked a, Ranked b) { return a.value < b.value || (a.value == b.value && a.id > b.id); }

// Lets `one` sink from the top of a heap whose worst is on top.
TGK_INLINE void sink(Ranked* heap, int64_t size, int64_t place, Ranked one) {
  for (;;) {
    int64_t child = 2 * place + 1;
    if (child >= size) break;
    if (child + 1 < size && is_worse(heap[child + 1], heap[child])) child++;
    if (!is_worse(heap[child], one)) break;
    heap[place] = heap[child];
    place = child;
  }
  heap[place] = one;
}

// Leaves the k best of a row in `heap`, the worst of them on top. 0 < k <= size.
TGK_INLINE void keep_best(const float* row, int64_t size, int64_t k, Ranked* heap) {
  for (int64_t i = 0; i < k; i++) heap[i] = {row[i], (int32_t)i};
  for (int64_t place = k / 2 - 1; place >= 0; place--) sink(heap, k, place, heap[place]);
  for (int64_t i = k; i < size; i += kLanes) {
    uint32_t above = lanes_above(load_some(row + i, size - i, -INFINITY), splat(heap[0].value));
    for (; above; above &= above - 1) {
      const int64_t id = i + __builtin_ctz(above);
      if (row[id] > heap[0].value) sink(heap, k, 0, {row[id], (int32_t)id});
    }
  }
}

TGK_INLINE int64_t top_k_scratch_bytes(const TgkTopK& a) { return a.k * (int64_t)sizeof(Ranked); }

void top_k(const TgkTopK& a, const int64_t* row_ids, Span rows, char* scratch) {
  Ranked* heap = (Ranked*)scratch;
  for (int64_t index = rows.begin; index < rows.end; index++) {
    keep_best(a.logits + row_ids[index] * a.stride, a.vocab_size, a.k, heap);
    for (int64_t left = a.k; left > 0; left--) {
      a.values[index * a.k + left - 1] = heap[0].value;
      a.ids[index * a.k + left - 1] = heap[0].id;
      sink(heap, left - 1, 0, heap[left - 1]);
    }
  }
}

// What is left of a row, in the order of ids.
struct Tokens {
  float* scores;  // logits divided by the temperature, the largest 0
  float* probs;   // their exponentials
  int32_t* ids;
  int64_t count;
  bool is_whole;  // id and place are the same, and `ids` is not filled in
};

// Memory of one thread while it draws.
struct DrawScratch {
  static constexpr int64_t kBuckets = 4096;

  Ranked* heap;     // [kLargestHeap]
  double* sums;     // [larger of kBuckets and the number of blocks]
  float* scores;    // [padded size], and so the next
  float* probs;
  int32_t* ids;
  int32_t* places;

  static int64_t num_sums(int64_t size) { return larger(kBuckets, ceil_div(size, kBlock)); }
  static int64_t bytes(int64_t size) {
    return kLargestHeap * (int64_t)sizeof(Ranked) + num_sums(size) * 8 + 4 * padded_size(size) * 4;
  }
  DrawScratch(char* memory, int64_t size) {
    heap = (Ranked*)memory;
    sums = (double*)(heap + kLargestHeap);
    scores = (float*)(sums + num_sums(size));
    probs = scores + padded_size(size);
    ids = (int32_t*)(probs + padded_size(size));
    places = ids + padded_size(size);
  }
};

// Fills in the probabilities, up to a common factor, and returns their sum.
TGK_INLINE double weigh(const Tokens& tokens) {
  double total = 0;
  const Vec lowest = splat(kLowestScore);
  for (int64_t first = 0; first < tokens.count; first += kBlock) {
    const int64_t end = smaller(tokens.count, first + kBlock);
    Vec sum = zero();
    for (int64_t i = first; i < end; i += kLanes) {
      const Vec score = load_some(tokens.scores + i, end - i, -INFINITY);
      const Vec prob = zero_where_below(exponential(score), score, lowest);
      store(tokens.probs + i, prob);
      sum = add(sum, prob);
    }
    total += sum_of_lanes(sum);
  }
  return total;
}

TGK_INLINE uint32_t key_of(float x) {  // of numbers that are not negative: ordered as they are
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffu;
}

// Where the smallest keys end: those below `key`, and equal ones up to place `last`.
struct Cut {
  uint32_t key;
  int64_t last;
};

// The smallest |values| whose masses together reach the target; equal ones by place. Nothing beyond a mass of 0.
// masses: null for 1 each; their sum must be above 0.
TGK_INLINE Cut smallest_set(const float* values, const float* masses, int64_t count, double target,
                            const DrawScratch& scratch) {
  double before = 0;
  int64_t num_left = count;
  int32_t* left = scratch.places;
  for (int level = 0; level < 3; level++) {
    const int shift = level == 0 ? 19 : level == 1 ? 7 : 0;
    const uint32_t mask = level < 2 ? DrawScratch::kBuckets - 1 : 127;
    memset(scratch.sums, 0, (mask + 1) * sizeof(double));
    for (int64_t j = 0; j < num_left; j++) {
      const int64_t i = level ? left[j] : j;
      scratch.sums[key_of(values[i]) >> shift & mask] += masses ? masses[i] : 1.0f;
    }
    uint32_t bucket = 0;
    double before_bucket = 0, sum = before;
    for (uint32_t b = 0; b <= mask; b++) {
      if (!(scratch.sums[b] > 0)) continue;
      bucket = b;
      before_bucket = sum;
      sum += scratch.sums[b];
      if (sum >= target) break;
    }
    before = before_bucket;
    int64_t kept = 0;
    for (int64_t j = 0; j < num_left; j++) {
      const int32_t i = level ? left[j] : (int32_t)j;
      if ((key_of(values[i]) >> shift & mask) == bucket) left[kept++] = i;
    }
    num_left = kept;
  }
  int64_t last = 0;
  for (int64_t j = 0; j < num_left; j++) {
    last = left[j];
    before += masses ? masses[last] : 1.0f;
    if (before >= target) break;
  }
  return {key_of(values[left[0]]), last};
}

TGK_INLINE void keep_one(Tokens& tokens, int64_t& count, int64_t i) {
  tokens.ids[count] = tokens.is_whole ? (int32_t)i : tokens.ids[i];
  tokens.scores[count] = tokens.scores[i];
  tokens.probs[count] = tokens.probs[i];
  count++;
}

// keys: of each token; may be the scores themselves.
TGK_INLINE void keep_smallest(Tokens& tokens, const float* keys, Cut cut) {
  int64_t count = 0;
  for (int64_t i = 0; i < tokens.count; i++) {
    const uint32_t key = key_of(keys[i]);
    if (key < cut.key || (key == cut.key && i <= cut.last)) keep_one(tokens, count, i);
  }
  tokens.count = count;
  tokens.is_whole = false;
}

TGK_INLINE void keep_likelier(Tokens& tokens, float bound) {
  int64_t count = 0;
  for (int64_t first = 0; first < tokens.count; first += kLanes) {
    uint32_t kept = lanes_above(load_some(tokens.probs + first, tokens.count - first, 0.0f), splat(bound));
    for (; kept; kept &= kept - 1) keep_one(tokens, count, first + __builtin_ctz(kept));
  }
  tokens.count = count;
  tokens.is_whole = false;
}

// Scores of all tokens.
TGK_INLINE void take_all(Tokens& tokens, const float* row, int64_t size, float best, float temperature) {
  for (int64_t i = 0; i < size; i += kLanes)
    store(tokens.scores + i, div(sub(load_some(row + i, size - i, -INFINITY), splat(best)), splat(temperature)));
  tokens.count = size;
  tokens.is_whole = true;
}

// Scores of the k best tokens and of those that tie with the k-th, when divided by the temperature.
TGK_INLINE void take_best(Tokens& tokens, const float* row, int64_t size, float best, float temperature, int64_t k,
                          const DrawScratch& scratch) {
  if (k > kLargestHeap) {
    take_all(tokens, row, size, best, temperature);
    Cut cut = smallest_set(tokens.scores, nullptr, size, (double)k, scratch);
    cut.last = size;
    keep_smallest(tokens, tokens.scores, cut);
    return;
  }
  keep_best(row, size, k, scratch.heap);
  const float last = scratch.heap[0].value - best, last_score = last / temperature;
  // Division may round unequal numbers to the same score, if they are as near as this.
  const Vec bound = splat(last * 1.000001f - 1e-30f);
  int64_t count = 0;
  for (int64_t first = 0; first < size; first += kLanes) {
    const Vec below_best = sub(load_some(row + first, size - first, -INFINITY), splat(best));
    uint32_t near = lanes_not_below(below_best, bound);
    for (; near; near &= near - 1) {
      const int64_t id = first + __builtin_ctz(near);
      if (id >= size) break;
      const float score = (row[id] - best) / temperature;
      if (score < last_score) continue;
      tokens.scores[count] = score;
      tokens.ids[count++] = (int32_t)id;
    }
  }
  tokens.count = count;
  tokens.is_whole = false;
}

TGK_INLINE void keep_typical(Tokens& tokens, double total, double mass, const DrawScratch& scratch) {
  const float log_total = (float)log(total);
  double entropy = 0;
  for (int64_t first = 0; first < tokens.count; first += kBlock) {
    const int64_t end = smaller(tokens.count, first + kBlock);
    Vec sum = zero();
    for (int64_t i = first; i < end; i += kLanes) {
      const Vec score = max(splat(kLowestScore), load_some(tokens.scores + i, end - i, kLowestScore));
      sum = fma(load_some(tokens.probs + i, end - i, 0.0f), sub(splat(log_total), score), sum);
    }
    entropy += sum_of_lanes(sum);
  }
  entropy /= total;
  const Vec typical = splat((float)(log_total - entropy));
  for (int64_t i = 0; i < tokens.count; i += kLanes)  // the surprise less the entropy; its sign is no part of the key
    store(tokens.scores + i, sub(typical, load(tokens.scores + i)));
  Cut cut = smallest_set(tokens.scores, tokens.probs, tokens.count, mass * total, scratch);
  cut.last = tokens.count;  // those that tie with the last stay
  keep_smallest(tokens, tokens.scores, cut);
}

// The first place whose cumulative probability exceeds the uniform number's share of the total; never one of
// probability 0, unless all are.
TGK_INLINE int64_t invert(const float* probs, int64_t count, double uniform, double* sums) {
  double total = 0;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t end = smaller(count, first + kBlock);
    Vec sum = zero();
    for (int64_t i = first; i < end; i += kLanes) sum = add(sum, load_some(probs + i, end - i, 0.0f));
    total += sums[first / kBlock] = sum_of_lanes(sum);
  }
  // Where rounding keeps a sum below its target, the last that adds anything is meant.
  const double target = uniform * total;
  double before = 0, sum = 0;
  int64_t block = 0;
  for (int64_t b = 0; b < ceil_div(count, kBlock); b++) {
    if (!(sums[b] > 0)) continue;
    block = b;
    before = sum;
    sum += sums[b];
    if (sum > target) break;
  }
  int64_t place = block * kBlock;
  const int64_t end = smaller(count, place + kBlock);
  sum = before;
  for (int64_t i = place; i < end; i++) {
    if (!(probs[i] > 0)) continue;
    place = i;
    sum += probs[i];
    if (sum > target) break;
  }
  return place;
}

TGK_INLINE int64_t draw_one(const float* row, int64_t size, const TgkFilters& filters, const DrawScratch& scratch) {
  Tokens tokens{scratch.scores, scratch.probs, scratch.ids, 0, true};
  const Largest best = largest_of(row, size);
  if (0 < filters.top_k && filters.top_k < size)
    take_best(tokens, row, size, best.value, filters.temperature, filters.top_k, scratch);
  else
    take_all(tokens, row, size, best.value, filters.temperature);
  double total = weigh(tokens);
  if (!(total > 0 && total < INFINITY)) return best.id;
  if (filters.top_p < 1.0) {
    // Tokens below this bound add up to less than half of what the filter drops: they go first, and cheaply.
    keep_likelier(tokens, (float)(0.5 * (1.0 - filters.top_p) * total / (double)tokens.count));
    keep_smallest(tokens, tokens.scores,
                  smallest_set(tokens.scores, tokens.probs, tokens.count, filters.top_p * total, scratch));
    total = weigh(tokens);
  }
  if (filters.typical_p < 1.0) keep_typical(tokens, total, filters.typical_p, scratch);
  const int64_t place = invert(tokens.probs, tokens.count, filters.uniform, scratch.sums);
  return tokens.is_whole ? place : tokens.ids[place];
}

void draw(const TgkDraw& a, const int64_t* row_ids, Span rows, char* scratch) {
  const DrawScratch own(scratch, a.vocab_size);
  for (int64_t index = rows.begin; index < rows.end; index++)
    a.ids[index] = draw_one(a.logits + row_ids[index] * a.stride, a.vocab_size, a.filters[index], own);
}

}  // namespace TGK_ISA
}  // namespace tgk
