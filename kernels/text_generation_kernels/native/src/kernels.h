// The ops of one instruction set, as functions that every thread of a team calls.
#pragma once

#include "abi.h"
#include "team.h"

namespace tgk {

struct Kernels {
  const char* name;
  bool (*runs_here)();
  // This thread's share of one instruction.
  void (*run)(const TgkInstruction& instruction, const TgkStep& step, Team& team, int thread);
  // Memory that an instruction needs for each thread, and for all together.
  int64_t (*scratch_bytes)(const TgkInstruction& instruction, const TgkStep& step, int num_threads);
  int64_t (*shared_bytes)(const TgkInstruction& instruction, const TgkStep& step, int num_threads);
};

extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
extern const Kernels kKernelsAmx;
extern const Kernels kKernelsNeon;

}  // namespace tgk
