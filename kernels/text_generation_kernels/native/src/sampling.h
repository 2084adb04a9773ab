// The best token of a row of logits, and a token's log-softmax.
#pragma once

#include "vector.h"

namespace tgk {
namespace TGK_ISA {

// log of the sum of exp(logits - largest), in double over blocks of float sums: one order, whatever stands beside the row.
TGK_INLINE double log_of_sum(const float* logits, int64_t size, float largest) {
  constexpr int64_t block = 4096;
  double total = 0;
  for (int64_t first = 0; first < size; first += block) {
    const int64_t end = smaller(first + block, size);
    Vec sum = zero();
    int64_t i = first;
    for (; i + kLanes <= end; i += kLanes) sum = add(sum, exponential(sub(load(logits + i), splat(largest))));
    total += sum_of_lanes(sum);
    for (; i < end; i++) {
      float lanes[kLanes];
      store(lanes, exponential(splat(logits[i] - largest)));
      total += lanes[0];
    }
  }
  return __builtin_log(total);
}

TGK_INLINE int64_t best_token(const float* logits, int64_t size) {
  Vec largest = splat(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) largest = max(load(logits + i), largest);
  float value = largest_of_lanes(largest);
  for (; i < size; i++) value = logits[i] > value ? logits[i] : value;
  for (int64_t token = 0; token < size; token++)
    if (logits[token] == value) return token;
  return 0;  // a row of NaN: the log-probability will say so
}

void token_logprobs(const float* logits, int64_t stride, Span rows, int64_t vocab_size, const int64_t* chosen,
                    int64_t* best, float* logprobs) {
  for (int64_t row = rows.begin; row < rows.end; row++) {
    const float* scores = logits + row * stride;
    const int64_t top = best_token(scores, vocab_size);
    if (best) best[row] = top;
    const int64_t token = chosen ? chosen[row] : top;
    logprobs[row] = (float)((double)(scores[token] - scores[top]) - log_of_sum(scores, vocab_size, scores[top]));
  }
}

}  // namespace TGK_ISA
}  // namespace tgk
