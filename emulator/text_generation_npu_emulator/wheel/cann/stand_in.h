// What the parts of the stand-in share. It is a CANN runtime whose cards are the host's memory: enough of one for
// torch_npu to load, and to keep its own books of devices, memory, streams, events and captured graphs.
//
// It computes nothing. Ops are computed by the emulator's kernels, which torch calls before torch_npu comes to ask for
// them here; one that does come is an op that nobody emulates, and gets an error. So does every function that is here
// only because torch_npu links to it: an answer "done" for something that was not done is what must never happen.
#pragma once

#include <cstdint>

#include "acl/acl.h"
#include "acl/acl_op_compiler.h"
#include "acl/acl_rt.h"

#define STAND_IN_API extern "C" __attribute__((visibility("default")))

namespace stand_in {

// Leaves a message for aclGetRecentErrMsg, for this thread, and returns the code.
aclError fail(aclError code, const char* format, ...) __attribute__((format(printf, 2, 3)));

// The card that this thread has chosen; -1: none yet.
int current_device();

struct Stream {
    int device;
    int32_t id;
};

// What only the emulator can do. Numbers that name graphs and task groups are its own; 0 is none. Where one of these
// does not succeed it has left a message, and returns the runtime's error code, or no number.
struct Hooks {
    uint64_t (*begin_capture)();
    aclError (*end_capture)();
    aclError (*replay)(uint64_t graph);
    void (*destroy)(uint64_t graph);
    aclError (*begin_group)();
    uint64_t (*end_group)();
    aclError (*begin_update)(uint64_t group);
    aclError (*end_update)();
    // An event that lives outside of graphs: recorded (0), waited for (1), reset (2).
    aclError (*mark)(uint64_t event, int32_t what);
    // The host waits for a card.
    aclError (*wait)();
};

const Hooks& hooks();

}  // namespace stand_in
