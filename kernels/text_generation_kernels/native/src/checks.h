// What can be known to be wrong with an instruction or a step before anything runs.
#pragma once

#include "abi.h"

namespace tgk {

// 0, or -1 with the reason noted: an index of the step that would lead outside the memory described.
int32_t check(const TgkInstruction& instruction, const TgkStep& step);

}  // namespace tgk
