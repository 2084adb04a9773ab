// The reason of the calling thread's last failed call.
#pragma once

#include <stdint.h>

namespace tgk {

// Notes the reason and returns -1.
int32_t fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace tgk
