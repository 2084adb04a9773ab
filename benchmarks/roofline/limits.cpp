// What this machine can do on some threads: bytes read per second from memory, and arithmetic per second by instruction
// set. Registers only, no kernel of ours: the best that any kernel could come near. Arguments: threads, seconds for each
// number, megabytes. Prints lines "name value", best of all tries.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sys/mman.h>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Chains of sums that do not depend on each other, enough to hide the latency of one. Each has a name: gcc keeps an array
// of them in memory, and then measures that.
#define CHAINS_12(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define CHAINS_24(DO) \
  CHAINS_12(DO) DO(12) DO(13) DO(14) DO(15) DO(16) DO(17) DO(18) DO(19) DO(20) DO(21) DO(22) DO(23)

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Runs work(thread) on all threads, which begin together. Returns the seconds until the last has ended.
double together(int threads, const std::function<void(int)>& work) {
  std::atomic<int> waiting{threads};
  std::vector<double> began(threads), ended(threads);
  std::vector<std::thread> pool;
  for (int thread = 0; thread < threads; ++thread) {
    pool.emplace_back([&, thread] {
      --waiting;
      while (waiting > 0) {
      }
      began[thread] = now();
      work(thread);
      ended[thread] = now();
    });
  }
  for (auto& one : pool) one.join();
  return *std::max_element(ended.begin(), ended.end()) - *std::min_element(began.begin(), began.end());
}

// The best rate of `amount` of work, tried for so many seconds.
double best_rate(int threads, double seconds, double amount, const std::function<void(int)>& work) {
  double best = 0;
  const double end = now() + seconds;
  do best = std::max(best, amount / together(threads, work));
  while (now() < end);
  return best;
}

uint64_t read_all(const uint64_t* data, size_t count) {
  uint64_t sums[16] = {};
  for (size_t at = 0; at + 16 <= count; at += 16)
    for (int lane = 0; lane < 16; ++lane) sums[lane] += data[at + lane];
  uint64_t sum = 0;
  for (uint64_t lane : sums) sum += lane;
  return sum;
}

// A try is short, so that on a busy machine some of them are not interrupted.
constexpr int kLoops = 400'000;
constexpr size_t kPieces = 8;  // of the memory: each try reads another one, and the cache has lost it by its next turn

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t read_avx2(const uint64_t* data, size_t count) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (size_t at = 0; at + 16 <= count; at += 16) {
    const auto* from = reinterpret_cast<const __m256i*>(data + at);
    a = _mm256_add_epi64(a, _mm256_load_si256(from));
    b = _mm256_add_epi64(b, _mm256_load_si256(from + 1));
    c = _mm256_add_epi64(c, _mm256_load_si256(from + 2));
    d = _mm256_add_epi64(d, _mm256_load_si256(from + 3));
  }
  a = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
  return _mm256_extract_epi64(a, 0) + _mm256_extract_epi64(a, 1) + _mm256_extract_epi64(a, 2) + _mm256_extract_epi64(a, 3);
}

__attribute__((target("avx2,fma"))) void fma_avx2() {
  const __m256 x = _mm256_set1_ps(0.5f);
#define BEGIN(n) __m256 sum##n = _mm256_setzero_ps();
#define ADD(n) sum##n = _mm256_fmadd_ps(x, x, sum##n); asm volatile("" : "+x"(sum##n));
  CHAINS_12(BEGIN)
  for (int loop = 0; loop < kLoops; ++loop) { CHAINS_12(ADD) }
#undef BEGIN
#undef ADD
}

__attribute__((target("avx512f"))) void fma_avx512() {
  const __m512 x = _mm512_set1_ps(0.5f);
#define BEGIN(n) __m512 sum##n = _mm512_setzero_ps();
#define ADD(n) sum##n = _mm512_fmadd_ps(x, x, sum##n); asm volatile("" : "+v"(sum##n));
  CHAINS_24(BEGIN)
  for (int loop = 0; loop < kLoops / 2; ++loop) { CHAINS_24(ADD) }
#undef ADD
}

__attribute__((target("avx512f,avx512bf16"))) void dot_avx512_bf16() {
  const __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f00);
#define ADD(n) sum##n = _mm512_dpbf16_ps(sum##n, x, x); asm volatile("" : "+v"(sum##n));
  CHAINS_24(BEGIN)
  for (int loop = 0; loop < kLoops / 2; ++loop) { CHAINS_24(ADD) }
#undef BEGIN
#undef ADD
}

bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

__attribute__((target("amx-tile,amx-bf16"))) void tiles_bf16() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t columns[16] = {};
    uint8_t rows[16] = {};
  } shape;
  for (int tile = 0; tile < 8; ++tile) {
    shape.columns[tile] = 64;
    shape.rows[tile] = 16;
  }
  // Numbers of all bits: with zeros the products are a seventh faster than anything real is.
  alignas(64) static uint16_t numbers[4][16][32];
  uint32_t state = 1;
  for (auto& tile : numbers)
    for (auto& row : tile)
      for (auto& number : row) number = uint16_t(0x3c00 | ((state = state * 1664525u + 1013904223u) >> 16 & 0x80ff));
  asm volatile("" : : "r"(&shape), "r"(numbers) : "memory");  // gcc 12 believes that only the first bytes are read
  _tile_loadconfig(&shape);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, numbers[0], 64);
  _tile_loadd(5, numbers[1], 64);
  _tile_loadd(6, numbers[2], 64);
  _tile_loadd(7, numbers[3], 64);
  for (int loop = 0; loop < kLoops / 64; ++loop) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}
#elif defined(__aarch64__)
void fma_neon() {
  const float32x4_t x = vdupq_n_f32(0.5f);
#define BEGIN(n) float32x4_t sum##n = vdupq_n_f32(0);
#define ADD(n) sum##n = vfmaq_f32(sum##n, x, x); asm volatile("" : "+w"(sum##n));
  CHAINS_24(BEGIN)
  for (int loop = 0; loop < kLoops; ++loop) { CHAINS_24(ADD) }
#undef BEGIN
#undef ADD
}
#endif

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const int threads = std::atoi(argv[1]);
  const double seconds = std::atof(argv[2]);
  const size_t bytes = size_t(std::atoi(argv[3])) << 20;

  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  madvise(memory, bytes, MADV_HUGEPAGE);
  auto* data = static_cast<uint64_t*>(memory);
  const size_t share = bytes / sizeof(uint64_t) / threads / 16 * 16;
  together(threads, [&](int thread) { std::fill(data + thread * share, data + (thread + 1) * share, thread); });
  std::atomic<uint64_t> sum{0};
  auto reader = read_all;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) reader = read_avx2;
#endif
  const size_t piece = share / kPieces / 16 * 16;
  size_t turn = 0;
  double best = 0;
  for (const double end = now() + seconds; now() < end; ++turn) {
    const size_t first = turn % kPieces * piece;
    const double took = together(threads, [&](int thread) { sum += reader(data + thread * share + first, piece); });
    best = std::max(best, double(piece) * threads * sizeof(uint64_t) / took);
  }
  std::printf("bytes %.6g\n", best);

#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    std::printf("avx2 %.6g\n", best_rate(threads, seconds, 2.0 * 8 * 12 * kLoops * threads, [](int) { fma_avx2(); }));
  if (__builtin_cpu_supports("avx512f"))
    std::printf("avx512 %.6g\n",
                best_rate(threads, seconds, 2.0 * 16 * 24 * (kLoops / 2) * threads, [](int) { fma_avx512(); }));
  if (__builtin_cpu_supports("avx512bf16"))
    std::printf("avx512_bf16 %.6g\n",
                best_rate(threads, seconds, 4.0 * 16 * 24 * (kLoops / 2) * threads, [](int) { dot_avx512_bf16(); }));
  if (may_use_tiles()) {
    const double amount = 2.0 * 16 * 16 * 32 * 4 * (kLoops / 64) * threads;
    const double products = best_rate(threads, seconds, amount, [](int) { tiles_bf16(); });
    std::printf("amx_bf16 %.6g\n", products);
    // Of float32 numbers in two parts, each of which is multiplied: what a server does unless it is told otherwise.
    std::printf("amx %.6g\n", products / 2);
  }
#elif defined(__aarch64__)
  std::printf("neon %.6g\n", best_rate(threads, seconds, 2.0 * 4 * 24 * kLoops * threads, [](int) { fma_neon(); }));
#endif
  return sum == 0 && threads < 0;
}
