// Compiled for Armv8-A, whose Advanced SIMD every 64-bit Arm processor has.
#define TGK_ISA neon
#include "all_kernels.h"

namespace tgk {

static bool runs_here() { return true; }

const Kernels kKernelsNeon = TGK_KERNELS("neon", runs_here);

}  // namespace tgk
