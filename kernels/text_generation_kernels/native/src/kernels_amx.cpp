// Compiled for AVX-512, with AMX in assembler: by tiles are linears of bfloat16 and int8 weights, and attention over a
// bfloat16 cache; all the rest is as kernels_avx512.cpp has it.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TGK_ISA amx
#include "kernels.h"
#include "tile_attention.h"
#include "tile_linear.h"

namespace tgk {
namespace amx {

static int64_t rows_of(const TgkInstruction& instruction, const TgkStep& step) {
  return instruction.rows == TGK_TOKENS ? step.num_tokens : step.num_sampled;
}

static bool is_tile_linear(const TgkInstruction& instruction) {
  return instruction.op == TGK_LINEAR && takes_tiles(instruction.linear);
}

static bool is_tile_attention(const TgkInstruction& instruction) {
  return instruction.op == TGK_ATTENTION && takes_tiles(instruction.attention);
}

static void run(const TgkInstruction& instruction, const TgkStep& step, Team& team, int thread) {
  if (is_tile_linear(instruction)) return tile_linear(instruction.linear, rows_of(instruction, step), team, thread);
  if (is_tile_attention(instruction)) return attend_by<TileAttention>(instruction.attention, step, team, thread);
  kKernelsAvx512.run(instruction, step, team, thread);
}

static int64_t scratch_bytes(const TgkInstruction& instruction, const TgkStep& step, int num_threads) {
  if (is_tile_linear(instruction))
    return tile_linear_scratch_bytes(instruction.linear, rows_of(instruction, step), num_threads);
  if (is_tile_attention(instruction)) return attention_scratch<TileAttention>(instruction.attention, step);
  return kKernelsAvx512.scratch_bytes(instruction, step, num_threads);
}

static int64_t shared_bytes(const TgkInstruction& instruction, const TgkStep& step, int num_threads) {
  if (is_tile_linear(instruction))
    return tile_linear_shared_bytes(instruction.linear, rows_of(instruction, step), num_threads);
  if (is_tile_attention(instruction)) return attention_shared<TileAttention>(instruction.attention, step, num_threads);
  return kKernelsAvx512.shared_bytes(instruction, step, num_threads);
}

// Linux keeps a process from tiles, whose state is large, until it asks.
static bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

static bool has_tiles() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;  // of leaf 7's edx
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kBf16) && (d & kTile);
}

static bool rounds_to_bf16() {
  constexpr unsigned kAvx512Bf16 = 1u << 5;  // of leaf 7.1's eax
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kAvx512Bf16);
}

static bool runs_here() {
  static const bool runs = kKernelsAvx512.runs_here() && has_tiles() && rounds_to_bf16() && may_use_tiles();
  return runs;
}

}  // namespace amx

const Kernels kKernelsAmx = {"amx", amx::runs_here, amx::run, amx::scratch_bytes, amx::shared_bytes};

}  // namespace tgk
