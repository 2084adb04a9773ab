// The native library against plain loops, without Python: for sanitizers, and for other processors under an emulator.
//
// Memory is exactly as large as the interface says, so that an address sanitizer sees a step too far. Prints what differs
// and ends with 1, or prints the number of checks.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "abi.h"

namespace {

int num_checks = 0, num_failures = 0;

void expect(bool holds, const std::string& what) {
  num_checks++;
  if (!holds && ++num_failures < 20) printf("FAILED: %s\n", what.c_str());
}

uint32_t state = 1;
float random_float() {  // in [-1, 1), with 8 significant bits, so that bfloat16 holds it
  state = state * 1664525u + 1013904223u;
  return (float)((int)(state >> 24) - 128) / 128.0f;
}
std::vector<float> random_floats(int64_t count) {
  std::vector<float> x(count);
  for (float& value : x) value = random_float();
  return x;
}
std::vector<float> random_floats_of_two_parts(int64_t count) {  // of ten bits, which take two bfloat16
  std::vector<float> x(count);
  for (float& value : x) value = random_float() + random_float() / 4;
  return x;
}
uint16_t bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)(bits >> 16);
}

bool close(float a, double b) { return fabs(a - b) <= 2e-5 * (1 + fabs(b)); }

struct TeamHandle {
  void* team;
  TeamHandle(int threads, const std::string& set) : team(tgk_team_new(threads, set.c_str())) {}
  ~TeamHandle() { tgk_team_free(team); }
  int32_t run(const TgkInstruction& instruction, const TgkStep& step) { return tgk_run(team, &instruction, 1, &step); }
};

TgkInstruction instruction(TgkOp op) {
  TgkInstruction made;
  memset(&made, 0, sizeof made);
  made.op = op;
  return made;
}
TgkStep tokens(int64_t count) {
  TgkStep step;
  memset(&step, 0, sizeof step);
  step.num_tokens = count;
  return step;
}

struct Weight {
  int64_t out_features, in_features, group_size = 0;
  int32_t format;
  std::vector<float> meant;  // [out_features, in_features]
  std::vector<char> panels;
  std::vector<float> scales;

  Weight(int64_t n, int64_t k, int32_t form) : out_features(n), in_features(k), format(form), meant(random_floats(n * k)) {
    panels.resize(tgk_packed_bytes(n, k, format));
    if (format == TGK_F32) {
      tgk_pack(meant.data(), TGK_F32, n, k, panels.data(), TGK_F32);
    } else if (format == TGK_BF16) {
      std::vector<uint16_t> halves;
      for (float value : meant) halves.push_back(bf16(value));
      tgk_pack(halves.data(), TGK_BF16, n, k, panels.data(), TGK_BF16);
    } else if (format == TGK_F16) {
      std::vector<uint16_t> halves;
      for (float& value : meant) {  // ones and halves, with either sign: 0x3c00 and 0x3800
        value = value < -0.5f ? -1.0f : value < 0 ? -0.5f : value < 0.5f ? 0.5f : 1.0f;
        halves.push_back((uint16_t)((value < 0 ? 0x8000 : 0) | (fabsf(value) == 1.0f ? 0x3c00 : 0x3800)));
      }
      tgk_pack(halves.data(), TGK_F16, n, k, panels.data(), TGK_F16);
    } else {
      group_size = 32;
      const int64_t groups = (k + 31) / 32;
      std::vector<int8_t> numbers;
      scales.assign((n + 15) / 16 * groups * 16, 0.0f);
      for (int64_t row = 0; row < n; row++)
        for (int64_t i = 0; i < k; i++) {
          float& scale = scales[(row / 16 * groups + i / 32) * 16 + row % 16];
          if (i % 32 == 0) scale = (1 + row % 3) / 64.0f;
          numbers.push_back((int8_t)(random_float() * 127));
          meant[row * k + i] = numbers.back() * scale;
        }
      tgk_pack_i8(numbers.data(), n, k, (int8_t*)panels.data());
    }
  }
};

void check_linear(const std::string& set, int threads) {
  TeamHandle team(threads, set);
  const std::vector<int32_t> all_parts = set == "amx" ? std::vector<int32_t>{2, 3} : std::vector<int32_t>{3};
  const int64_t shapes[][2] = {{1, 16}, {33, 129}, {96, 64}, {80, 600}, {200, 2100}};
  for (int32_t format : {TGK_F32, TGK_BF16, TGK_F16, TGK_I8})
    for (const auto& shape : shapes) {
      const Weight weight(shape[0], shape[1], format);
      const std::vector<float> bias = random_floats(shape[0]);
      const int64_t most_rows = 43;
      const std::vector<float> x = random_floats_of_two_parts(most_rows * shape[1]);
      std::vector<float> first(shape[0]);
      std::vector<double> sums(most_rows * shape[0]);
      for (int64_t i = 0; i < most_rows * shape[0]; i++) {
        const int64_t row = i / shape[0], n = i % shape[0];
        sums[i] = bias[n];
        for (int64_t k = 0; k < shape[1]; k++) sums[i] += (double)x[row * shape[1] + k] * weight.meant[n * shape[1] + k];
      }
      for (int32_t x_parts : all_parts)
        for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 43}) {
          const std::vector<float> exact_x(x.begin(), x.begin() + rows * shape[1]);
          std::vector<float> out(rows * shape[0], NAN);
          TgkInstruction made = instruction(TGK_LINEAR);
          made.linear = {exact_x.data(), shape[1], out.data(), shape[0], weight.panels.data(), weight.scales.data(),
                         bias.data(), shape[0], shape[1], weight.group_size, format, x_parts};
          expect(team.run(made, tokens(rows)) == 0, "linear runs");
          const std::string name = set + " linear format " + std::to_string(format) + " parts " + std::to_string(x_parts) +
                                   " rows " + std::to_string(rows);
          bool is_close = true;
          for (int64_t i = 0; i < rows * shape[0]; i++) is_close = is_close && close(out[i], sums[i]);
          expect(is_close, name);
          if (rows == 1) first = out;
          expect(!memcmp(first.data(), out.data(), shape[0] * sizeof(float)), name + ": the first row is the same");
        }
    }
}

struct Sequences {
  int64_t block_size = 16, num_heads = 6, num_kv_heads = 2, head_dim;
  int32_t format;
  std::vector<char> k, v;  // caches
  int64_t num_blocks = 40;

  Sequences(int64_t dim, int32_t form) : head_dim(dim), format(form) {
    const int64_t bytes = num_blocks * num_kv_heads * block_size * ((dim + 15) / 16 * 16) * (form == TGK_F32 ? 4 : 2);
    k.assign(bytes, 0);
    v.assign(bytes, 0);
  }
  TgkCache cache() { return {k.data(), v.data(), num_blocks, block_size, num_kv_heads, head_dim, format}; }
  static int32_t block(int64_t position, int64_t row) { return (int32_t)((position / 16 * 7 + row * 13) % 40); }
};

// Attention of the tokens [cached, length) of a sequence in blocks of its own.
std::vector<float> attend(TeamHandle& team, Sequences& sequences, const std::vector<float>& fused, int64_t cached,
                          int64_t length) {
  const int64_t heads = sequences.num_heads, kv_heads = sequences.num_kv_heads, dim = sequences.head_dim;
  const int64_t width = (heads + 2 * kv_heads) * dim, count = length - cached;
  std::vector<float> own(fused.begin() + cached * width, fused.begin() + length * width);
  std::vector<int32_t> slots, table;
  for (int64_t p = cached; p < length; p++) slots.push_back(Sequences::block(p, 0) * 16 + (int32_t)(p % 16));
  for (int64_t p = 0; p < length; p += 16) table.push_back(Sequences::block(p, 0));
  TgkStep step = tokens(count);
  const int64_t bounds[] = {0, count}, lengths[] = {length};
  step.num_rows = 1;
  step.max_blocks = (int64_t)table.size();
  step.slot_mapping = slots.data();
  step.block_tables = table.data();
  step.cu_seqlens_q = bounds;
  step.kv_lens = lengths;
  TgkInstruction store = instruction(TGK_STORE_KV);
  store.store_kv = {own.data() + heads * dim, width, own.data() + (heads + kv_heads) * dim, width, sequences.cache()};
  expect(team.run(store, step) == 0, "store_kv runs");
  std::vector<float> out(count * heads * dim, NAN);
  TgkInstruction made = instruction(TGK_ATTENTION);
  made.attention = {own.data(), width, out.data(), heads * dim, sequences.cache(), heads, 0.25f};
  expect(team.run(made, step) == 0, "attention runs");
  return out;
}

void check_attention(const std::string& set) {
  TeamHandle one(1, set), two(2, set);
  for (int64_t dim : {16, 64, 80, 20})
    for (int32_t format : {TGK_F32, TGK_BF16})
      for (int64_t length : {1, 15, 17, 129, 300}) {
        const std::string name = set + " attention dim " + std::to_string(dim) + " length " + std::to_string(length);
        Sequences sequences(dim, format);
        const int64_t heads = 6, kv_heads = 2, width = (heads + 2 * kv_heads) * dim;
        const std::vector<float> fused = random_floats(length * width);
        const std::vector<float> whole = attend(one, sequences, fused, 0, length);
        bool is_close = true;
        for (int64_t token = 0; token < length; token += token < 3 ? 1 : 41)
          for (int64_t head = 0; head < heads; head++) {
            const float* q = &fused[token * width + head * dim];
            const int64_t kv = head / 3;
            std::vector<double> scores;
            double largest = -1e30, sum = 0;
            for (int64_t p = 0; p <= token; p++) {
              double score = 0;
              for (int64_t i = 0; i < dim; i++) score += (double)q[i] * fused[p * width + (heads + kv) * dim + i] * 0.25;
              scores.push_back(score);
              largest = score > largest ? score : largest;
            }
            for (double& score : scores) sum += score = exp(score - largest);
            for (int64_t i = 0; i < dim; i++) {
              double value = 0;
              for (int64_t p = 0; p <= token; p++)
                value += scores[p] / sum * fused[p * width + (heads + kv_heads + kv) * dim + i];
              is_close = is_close && close(whole[(token * heads + head) * dim + i], value);
            }
          }
        expect(is_close, name);
        const int64_t row = heads * dim;
        const std::vector<float> last = attend(two, sequences, fused, length - 1, length);
        expect(!memcmp(last.data(), &whole[(length - 1) * row], row * sizeof(float)), name + ": the last alone is the same");
        const int64_t cut = length / 2;
        const std::vector<float> rest = attend(two, sequences, fused, cut, length);
        expect(!memcmp(rest.data(), &whole[cut * row], rest.size() * sizeof(float)), name + ": a chunk is the same");
      }
}

uint16_t rounded_bf16(uint32_t bits) {  // to nearest, ties to even; NaN stays NaN
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Writes a number of any bits where the format says that a panel's row and column are.
void set_in_panel(char* panel, int32_t format, int64_t row, int64_t column, uint32_t bits) {
  if (format == TGK_F32) {
    memcpy(panel + (row * 16 + column) * 4, &bits, 4);
    return;
  }
  const uint16_t half = rounded_bf16(bits);
  memcpy(panel + ((row / 2 * 16 + column) * 2 + row % 2) * 2, &half, 2);
}

// Slots 5 to 90 in order but for two that change places and one that is left out: whole pieces, and single tokens.
void check_store(const std::string& set, int threads) {
  TeamHandle team(threads, set);
  for (int64_t dim : {16, 64, 20, 7})
    for (int32_t format : {TGK_F32, TGK_BF16}) {
      Sequences stored(dim, format), expected(dim, format);
      const int64_t heads = stored.num_kv_heads, rows = 86, padded = (dim + 15) / 16 * 16, element = format == TGK_F32 ? 4 : 2;
      std::vector<int32_t> slots;
      for (int32_t row = 0; row < rows; row++) slots.push_back(5 + row);
      std::swap(slots[60], slots[61]);
      slots[70] = -1;
      std::vector<float> kv(rows * 2 * heads * dim);
      std::vector<uint32_t> bits(kv.size());
      const uint32_t special[] = {0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u, 0xffffffffu, 0x7f7fffffu};
      for (size_t i = 0; i < bits.size(); i++) {
        state = state * 1664525u + 1013904223u;
        bits[i] = i % 5 == 0 ? special[i / 5 % 7] : i % 5 == 1 ? (state & 0xffff0000u) | 0x8000 : state;
      }
      memcpy(kv.data(), bits.data(), bits.size() * sizeof(float));
      TgkStep step = tokens(rows);
      step.slot_mapping = slots.data();
      TgkInstruction made = instruction(TGK_STORE_KV);
      made.store_kv = {kv.data(), 2 * heads * dim, kv.data() + heads * dim, 2 * heads * dim, stored.cache()};
      expect(team.run(made, step) == 0, "store_kv runs");
      for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < heads * dim && slots[row] >= 0; i++) {
          const int64_t head = i / dim, d = i % dim, token = slots[row] % 16;
          const int64_t piece = (slots[row] / 16 * heads + head) * 16 * padded * element;
          const uint32_t *k = &bits[row * 2 * heads * dim], *v = k + heads * dim;
          set_in_panel(&expected.k[piece], format, d, token, k[i]);
          set_in_panel(&expected.v[piece + d / 16 * 16 * 16 * element], format, token, d % 16, v[i]);
        }
      const std::string name = set + " store_kv dim " + std::to_string(dim) + " format " + std::to_string(format);
      expect(stored.k == expected.k, name + ": keys");
      expect(stored.v == expected.v, name + ": values");
    }
}

void check_rowwise(const std::string& set, int threads) {
  TeamHandle team(threads, set);
  for (int64_t width : {1, 16, 33, 600})
    for (int64_t rows : {1, 5}) {
      const std::vector<float> x = random_floats(rows * width), weight = random_floats(width);
      std::vector<float> residual = random_floats(rows * width), out(rows * width, NAN);
      const std::vector<float> before = residual;
      TgkInstruction made = instruction(TGK_ADD_RMS_NORM);
      made.norm = {x.data(), width, 0, residual.data(), width, weight.data(), out.data(), width, 1, width, 1e-5f};
      expect(team.run(made, tokens(rows)) == 0, "norm runs");
      bool is_close = true;
      for (int64_t row = 0; row < rows; row++) {
        double squares = 0;
        for (int64_t i = 0; i < width; i++) squares += pow(x[row * width + i] + before[row * width + i], 2);
        for (int64_t i = 0; i < width; i++)
          is_close = is_close && close(out[row * width + i], (x[row * width + i] + before[row * width + i]) /
                                                                 sqrt(squares / width + 1e-5f) * weight[i]);
      }
      expect(is_close, set + " add_rms_norm " + std::to_string(width));

      const std::vector<float> gated = random_floats(rows * 2 * width);
      TgkInstruction silu = instruction(TGK_SILU_AND_MUL);
      silu.silu = {gated.data(), 2 * width, out.data(), width, width};
      expect(team.run(silu, tokens(rows)) == 0, "silu runs");
      is_close = true;
      for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < width; i++) {
          const double gate = gated[row * 2 * width + i];
          is_close = is_close && close(out[row * width + i], gate / (1 + exp(-gate)) * gated[row * 2 * width + width + i]);
        }
      expect(is_close, set + " silu_and_mul " + std::to_string(width));

      const Weight table(20, width, TGK_BF16);
      std::vector<float> found(3 * width, NAN);
      const int64_t ids[] = {19, 0, 7};
      TgkStep step = tokens(3);
      step.token_ids = ids;
      TgkInstruction lookup = instruction(TGK_EMBEDDING);
      lookup.embedding = {table.panels.data(), 0, 20, width, found.data(), width, TGK_BF16, TGK_TOKEN_IDS, 1};
      expect(team.run(lookup, step) == 0, "embedding runs");
      for (int64_t i = 0; i < 3; i++)
        expect(!memcmp(&found[i * width], &table.meant[ids[i] * width], width * sizeof(float)), set + " packed embedding");
      lookup.embedding.table = table.meant.data();
      lookup.embedding.table_stride = width;
      lookup.embedding.format = TGK_F32;
      lookup.embedding.is_packed = 0;
      expect(team.run(lookup, step) == 0, "embedding runs");
      expect(!memcmp(&found[0], &table.meant[19 * width], width * sizeof(float)), set + " embedding");
      const int64_t outside[] = {0, 20, 0};
      step.token_ids = outside;
      expect(team.run(lookup, step) == -1 && strstr(tgk_error(), "id 20 at 1"), "an id outside the table is refused");
    }
  for (int64_t half : {1, 8, 32, 40}) {
    const int64_t dim = 2 * half + 4, rows = 3, heads = 2;
    std::vector<float> q = random_floats(rows * heads * dim), k = random_floats(rows * dim);
    const std::vector<float> before = q, cos = random_floats(rows * half), sin = random_floats(rows * half);
    TgkInstruction made = instruction(TGK_ROTARY);
    made.rotary = {q.data(), heads * dim, k.data(), dim, cos.data(), half, sin.data(), half, heads, 1, dim, half};
    expect(team.run(made, tokens(rows)) == 0, "rotary runs");
    bool is_close = true;
    for (int64_t i = 0; i < rows * heads * dim; i++) {
      const int64_t d = i % dim, row = i / (heads * dim), j = d % half;
      const float c = cos[row * half + j], s = sin[row * half + j];
      const double expected = d >= 2 * half ? before[i] : d < half ? before[i] * c - before[i + half] * s
                                                                   : before[i] * c + before[i - half] * s;
      is_close = is_close && close(q[i], expected);
    }
    expect(is_close, set + " rotary " + std::to_string(half));
  }
}

// The tokens that the filters leave: their probabilities, 0 for the others.
std::vector<double> surviving(const float* row, int64_t size, const TgkFilters& f) {
  std::vector<double> scores, probs(size, 0.0);
  for (int64_t i = 0; i < size; i++) scores.push_back((row[i] - *std::max_element(row, row + size)) / f.temperature);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < size; i++) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  if (f.top_k > 0 && f.top_k < size) {
    const double kth = scores[order[f.top_k - 1]];
    order.erase(std::remove_if(order.begin(), order.end(), [&](int64_t i) { return scores[i] < kth; }), order.end());
  }
  double total = 0, reached = 0;
  for (int64_t i : order) total += probs[i] = exp(scores[i]);
  if (f.top_p < 1)
    for (int64_t i : order) {
      if (reached >= f.top_p * total) probs[i] = 0;
      reached += probs[i];
    }
  if (f.typical_p < 1) {
    double left = 0, entropy = 0, mass = 0;
    for (double p : probs) left += p;
    for (double p : probs) entropy -= p > 0 ? p / left * log(p / left) : 0;
    std::vector<std::pair<double, int64_t>> distances;
    for (int64_t i = 0; i < size; i++)
      if (probs[i] > 0) distances.push_back({fabs(-log(probs[i] / left) - entropy), i});
    std::sort(distances.begin(), distances.end());
    double furthest = distances[0].first;
    for (const auto& distance : distances) {
      if (mass < f.typical_p * left) furthest = distance.first;
      if (distance.first > furthest) probs[distance.second] = 0;  // those that tie with the last stay
      mass += probs[distance.second];
    }
  }
  return probs;
}

void check_choosing(const std::string& set, int threads) {
  TeamHandle team(threads, set);
  for (int64_t size : {1, 17, 300, 3001}) {
    const std::string name = set + " vocabulary " + std::to_string(size);
    const int64_t rows = 5;
    std::vector<float> logits = random_floats(rows * size);
    for (float& logit : logits) logit *= 5;
    std::vector<int64_t> ids(rows, -1), picked{4, 0, 2, 2, 1};
    std::vector<float> values(rows, NAN), log_sums(rows, NAN);
    TgkInstruction made = instruction(TGK_MOST_LIKELY);
    made.most_likely = {logits.data(), size, size, ids.data(), values.data(), log_sums.data()};
    expect(team.run(made, tokens(rows)) == 0, "most_likely runs");
    bool is_right = true;
    for (int64_t row = 0; row < rows; row++) {
      const float* own = &logits[row * size];
      double sum = 0;
      for (int64_t i = 0; i < size; i++) sum += exp((double)own[i] - values[row]);
      is_right = is_right && ids[row] == std::max_element(own, own + size) - own && values[row] == own[ids[row]] &&
                 close(log_sums[row], log(sum));
    }
    expect(is_right, name + " most_likely");

    TgkStep step = tokens(rows);
    step.token_ids = picked.data();
    for (int64_t k : {(int64_t)1, std::min<int64_t>(7, size), size}) {
      std::vector<float> best(rows * k, NAN);
      std::vector<int64_t> best_ids(rows * k, -1);
      made = instruction(TGK_TOP_K);
      made.top_k = {logits.data(), size, rows, size, k, best.data(), best_ids.data()};
      expect(team.run(made, step) == 0, "top_k runs");
      is_right = true;
      for (int64_t row = 0; row < rows; row++) {
        std::vector<float> sorted(&logits[picked[row] * size], &logits[picked[row] * size] + size);
        std::sort(sorted.rbegin(), sorted.rend());
        for (int64_t i = 0; i < k; i++)
          is_right = is_right && best[row * k + i] == sorted[i] &&
                     logits[picked[row] * size + best_ids[row * k + i]] == sorted[i];
      }
      expect(is_right, name + " top_k");
    }

    const TgkFilters kinds[] = {{1, 1, 0, 0, 1.0f},   {1, 1, 0, 0, 0.3f},  {1, 1, 0, 5, 2.0f},   {1, 1, 0, 2000, 1.0f},
                                {0.9, 1, 0, 0, 1.0f}, {1, 0.9, 0, 0, 1.0f}, {0.8, 0.7, 0, 50, 1.5f}};
    for (TgkFilters kind : kinds)
      for (double uniform : {0.0, 0.31, 0.77, 1 - 0x1p-53}) {
        kind.uniform = uniform;
        const std::vector<TgkFilters> filters(rows, kind);
        made = instruction(TGK_DRAW);
        made.draw = {logits.data(), size, rows, size, filters.data(), ids.data()};
        expect(team.run(made, step) == 0, "draw runs");
        is_right = true;
        for (int64_t row = 0; row < rows; row++) {
          const std::vector<double> probs = surviving(&logits[picked[row] * size], size, kind);
          double total = 0, before = 0;
          for (double p : probs) total += p;
          for (int64_t i = 0; i < ids[row]; i++) before += probs[i];
          is_right = is_right && probs[ids[row]] > 0 && before <= uniform * total + 1e-5 * total &&
                     before + probs[ids[row]] >= uniform * total - 1e-5 * total;
        }
        expect(is_right, name + " draw");
      }
    const TgkFilters off[] = {{1, 1, 0, 0, 1.0f}, {1, 1, 0, 0, 1.0f}};
    made.draw.filters = off;
    step.num_tokens = 2;
    picked[1] = rows;
    expect(team.run(made, step) == -1 && strstr(tgk_error(), "id 5 at 1"), "a row outside the logits is refused");
  }
}

}  // namespace

int main() {
  std::string sets = tgk_instruction_sets();
  while (!sets.empty()) {
    const std::string set = sets.substr(0, sets.find(' '));
    sets = sets.size() > set.size() ? sets.substr(set.size() + 1) : "";
    printf("%s\n", set.c_str());
    for (int threads : {1, 3}) {
      check_linear(set, threads);
      check_rowwise(set, threads);
      check_store(set, threads);
      check_choosing(set, threads);
    }
    check_attention(set);
  }
  printf("%d checks, %d failed\n", num_checks, num_failures);
  return num_failures != 0;
}
