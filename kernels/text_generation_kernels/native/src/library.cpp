// The C functions: which instruction set, and running instructions on a team's threads.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <new>

#include "abi.h"
#include "checks.h"
#include "errors.h"
#include "kernels.h"
#include "team.h"

namespace tgk {
namespace {

#if defined(__x86_64__)
const Kernels* const kAll[] = {
#if !defined(TGK_WITHOUT_AMX)
    &kKernelsAmx,
#endif
    &kKernelsAvx512, &kKernelsAvx2};
#else
const Kernels* const kAll[] = {&kKernelsNeon};
#endif

thread_local char last_error[256];

struct NativeTeam {
  NativeTeam(int num_threads, const Kernels& kernels) : threads(num_threads), kernels(kernels) {}
  Team threads;
  const Kernels& kernels;
};

struct Program {
  NativeTeam& team;
  const TgkInstruction* instructions;
  int64_t count;
  const TgkStep& step;

  // Whether the next instruction's threads touch only what the same thread has made in this one.
  bool goes_on(int64_t index) const {
    return index + 1 < count && instructions[index].op == TGK_ROTARY && instructions[index + 1].op == TGK_STORE_KV;
  }

  void run(int thread) const {
    for (int64_t index = 0; index < count; index++) {
      team.kernels.run(instructions[index], step, team.threads, thread);
      if (index + 1 < count && !goes_on(index)) team.threads.barrier();
    }
  }
};

int32_t prepare(const Program& program) {
  const int num_threads = program.team.threads.size();
  int64_t own_bytes = 0, shared_bytes = 0;
  for (int64_t index = 0; index < program.count; index++) {
    const TgkInstruction& instruction = program.instructions[index];
    // The layers of a model ask the same of the step: what has been checked need not be checked again.
    if (check(instruction, program.step)) return -1;
    const int64_t own = program.team.kernels.scratch_bytes(instruction, program.step, num_threads);
    own_bytes = own > own_bytes ? own : own_bytes;
    const int64_t shared = program.team.kernels.shared_bytes(instruction, program.step, num_threads);
    shared_bytes = shared > shared_bytes ? shared : shared_bytes;
  }
  for (int thread = 0; thread <= num_threads; thread++) {
    const int64_t bytes = thread < num_threads ? own_bytes : shared_bytes;
    if (bytes && !program.team.threads.scratch(thread, bytes))
      return fail("out of memory: %lld bytes", (long long)bytes);
  }
  return 0;
}

}  // namespace

int32_t fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  return -1;
}

}  // namespace tgk

using namespace tgk;

const char* tgk_source_digest(void) { return TGK_SOURCE_DIGEST; }
int64_t tgk_instruction_bytes(void) { return sizeof(TgkInstruction); }
int64_t tgk_step_bytes(void) { return sizeof(TgkStep); }
const char* tgk_error(void) { return last_error; }

const char* tgk_instruction_sets(void) {
  static thread_local char names[64];
  names[0] = 0;
  for (const Kernels* kernels : kAll)
    if (kernels->runs_here()) {
      if (names[0]) strcat(names, " ");
      strcat(names, kernels->name);
    }
  return names;
}

void* tgk_team_new(int32_t num_threads, const char* instruction_set) {
  for (const Kernels* kernels : kAll)
    if (!strcmp(kernels->name, instruction_set) && kernels->runs_here())
      return new (std::nothrow) NativeTeam(num_threads, *kernels);
  fail("instruction set %s cannot be run here", instruction_set);
  return nullptr;
}

void tgk_team_free(void* team) { delete static_cast<NativeTeam*>(team); }

int32_t tgk_run(void* team, const TgkInstruction* instructions, int64_t count, const TgkStep* step) {
  const Program program{*static_cast<NativeTeam*>(team), instructions, count, *step};
  if (prepare(program)) return -1;
  program.team.threads.run([](void* context, int thread) { static_cast<const Program*>(context)->run(thread); },
                           const_cast<Program*>(&program));
  return 0;
}
