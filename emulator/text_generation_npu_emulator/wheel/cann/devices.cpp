// Cards, their memory, and what the machine says of itself.

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "stand_in.h"

namespace {

constexpr size_t kAlignment = 512;  // of device memory

struct Block {
    size_t bytes;
    int device;
};

struct MachineState {
    std::string soc = "none";
    std::string cann = "0.0.0";
    std::vector<size_t> used;  // by card, in bytes: blocks, and what was reserved outside of them
    size_t total = 0;          // of one card
    size_t others = 0;         // of that, held by other processes
    bool has_inf_nan = false;
    std::unordered_map<void*, Block> blocks;
    std::mutex mutex;
};

MachineState machine;
stand_in::Hooks the_hooks;
thread_local int chosen_device = -1;
thread_local char message[1024] = "";
char contexts[64];  // the address of the n-th stands for the context of card n

bool has_card(int device) { return device >= 0 && device < static_cast<int>(machine.used.size()); }

}  // namespace

namespace stand_in {

aclError fail(aclError code, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return code;
}

int current_device() { return chosen_device; }

const Hooks& hooks() { return the_hooks; }

}  // namespace stand_in

using stand_in::fail;

// For the emulator.

// Must come before torch_npu is loaded. Bytes are those of one card.
STAND_IN_API void stand_in_configure(const char* soc, const char* cann, int cards, size_t total, size_t others,
                                     int has_inf_nan, const stand_in::Hooks* hooks) {
    machine.soc = soc;
    machine.cann = cann;
    machine.used.assign(static_cast<size_t>(cards), 0);
    machine.total = total;
    machine.others = others;
    machine.has_inf_nan = has_inf_nan != 0;
    the_hooks = *hooks;
}

// Memory that CANN takes for itself, as for a communicator's buffers.
STAND_IN_API void stand_in_reserve(int device, size_t bytes) {
    std::lock_guard<std::mutex> lock(machine.mutex);
    machine.used[static_cast<size_t>(device)] += bytes;
}

// The message of an error that a hook is about to return.
STAND_IN_API void stand_in_explain(const char* text) { fail(ACL_ERROR, "%s", text); }

// The process.

STAND_IN_API aclError aclInit(const char*) { return ACL_SUCCESS; }
STAND_IN_API aclError aclFinalize() { return ACL_SUCCESS; }
STAND_IN_API void aclAppLog(aclLogLevel, const char*, const char*, uint32_t, const char*, ...) {}

STAND_IN_API const char* aclGetRecentErrMsg() {
    static thread_local char given[sizeof message];
    std::memcpy(given, message, sizeof message);
    message[0] = '\0';
    return given;
}

STAND_IN_API const char* aclrtGetSocName() { return machine.soc.c_str(); }

STAND_IN_API aclError aclGetCannAttribute(aclCannAttr attribute, int32_t* value) {
    *value = attribute == ACL_CANN_ATTR_INF_NAN ? machine.has_inf_nan : 1;
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
    std::memset(version, 0, sizeof *version);
    std::snprintf(version->version, sizeof version->version, "%s", machine.cann.c_str());
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclsysGetVersionStr(char*, char* version) {
    std::strcpy(version, machine.cann.c_str());
    return ACL_SUCCESS;
}

// Cards. A thread has none until it chooses one, which torch_npu relies on.

STAND_IN_API aclError aclrtGetDeviceCount(uint32_t* count) {
    *count = static_cast<uint32_t>(machine.used.size());
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtSetDevice(int32_t device) {
    if (!has_card(device)) {
        return fail(ACL_ERROR_RT_INVALID_DEVICEID, "card %d is not among the %zu visible ones", device, machine.used.size());
    }
    chosen_device = device;
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtResetDevice(int32_t) { return ACL_SUCCESS; }

STAND_IN_API aclError aclrtGetDevice(int32_t* device) {
    if (chosen_device < 0) return fail(ACL_ERROR_RT_CONTEXT_NULL, "this thread has chosen no card");
    *device = chosen_device;
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtGetCurrentContext(aclrtContext* context) {
    *context = nullptr;
    if (chosen_device < 0) return fail(ACL_ERROR_RT_CONTEXT_NULL, "this thread has chosen no card");
    *context = &contexts[chosen_device];
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtSetCurrentContext(aclrtContext context) {
    return aclrtSetDevice(static_cast<int32_t>(static_cast<char*>(context) - contexts));
}

STAND_IN_API aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* active) {
    if (flags != nullptr) *flags = 0;
    *active = has_card(device);
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
    *can = 1;
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) { return ACL_SUCCESS; }

STAND_IN_API aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo, int64_t* value) {
    *value = 1;
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr, int64_t* value) {
    *value = 1;
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) { return ACL_SUCCESS; }
STAND_IN_API aclError aclrtSetOpExecuteTimeOut(uint32_t) { return ACL_SUCCESS; }
STAND_IN_API aclError aclrtSetOpWaitTimeout(uint32_t) { return ACL_SUCCESS; }

// Memory.

STAND_IN_API aclError aclrtMalloc(void** address, size_t bytes, aclrtMemMallocPolicy) {
    if (chosen_device < 0) return fail(ACL_ERROR_RT_CONTEXT_NULL, "this thread has chosen no card");
    std::lock_guard<std::mutex> lock(machine.mutex);
    size_t& used = machine.used[static_cast<size_t>(chosen_device)];
    if (used + machine.others + bytes > machine.total) {
        return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "card %d has not the %zu bytes that are asked for", chosen_device, bytes);
    }
    if (posix_memalign(address, kAlignment, bytes > 0 ? bytes : kAlignment) != 0) {
        return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host has not the %zu bytes that are asked for", bytes);
    }
    used += bytes;
    machine.blocks[*address] = Block{bytes, chosen_device};
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtFree(void* address) {
    std::lock_guard<std::mutex> lock(machine.mutex);
    const auto found = machine.blocks.find(address);
    if (found == machine.blocks.end()) return fail(ACL_ERROR_RT_PARAM_INVALID, "no memory of a card starts there");
    machine.used[static_cast<size_t>(found->second.device)] -= found->second.bytes;
    machine.blocks.erase(found);
    std::free(address);
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtMallocHost(void** address, size_t bytes) {
    if (posix_memalign(address, 64, bytes > 0 ? bytes : 64) == 0) return ACL_SUCCESS;
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host has not the %zu bytes that are asked for", bytes);
}

STAND_IN_API aclError aclrtFreeHost(void* address) {
    std::free(address);
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
    if (chosen_device < 0) return fail(ACL_ERROR_RT_CONTEXT_NULL, "this thread has chosen no card");
    std::lock_guard<std::mutex> lock(machine.mutex);
    const size_t taken = machine.used[static_cast<size_t>(chosen_device)] + machine.others;
    *total = machine.total;
    *free = machine.total > taken ? machine.total - taken : 0;
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind) {
    if (bytes > room) return fail(ACL_ERROR_RT_PARAM_INVALID, "%zu bytes do not fit into %zu", bytes, room);
    std::memmove(to, from, bytes);
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind kind,
                                       aclrtStream) {
    return aclrtMemcpy(to, room, from, bytes, kind);
}

STAND_IN_API aclError aclrtMemset(void* address, size_t room, int32_t value, size_t bytes) {
    if (bytes > room) return fail(ACL_ERROR_RT_PARAM_INVALID, "%zu bytes do not fit into %zu", bytes, room);
    std::memset(address, value, bytes);
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtMemsetAsync(void* address, size_t room, int32_t value, size_t bytes, aclrtStream) {
    return aclrtMemset(address, room, value, bytes);
}
