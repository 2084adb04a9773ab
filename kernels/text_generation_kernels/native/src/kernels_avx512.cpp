// Compiled for AVX-512 (F, BW, DQ, VL).
#define TGK_ISA avx512
#include "all_kernels.h"

namespace tgk {

static bool runs_here() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const Kernels kKernelsAvx512 = TGK_KERNELS("avx512", runs_here);

}  // namespace tgk
