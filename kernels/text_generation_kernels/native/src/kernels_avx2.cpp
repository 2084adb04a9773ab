// Compiled for x86-64-v3 (AVX2, FMA, F16C): what every x86 server of the last ten years has.
#define TGK_ISA avx2
#include "all_kernels.h"

namespace tgk {

static bool runs_here() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

const Kernels kKernelsAvx2 = TGK_KERNELS("avx2", runs_here);

}  // namespace tgk
