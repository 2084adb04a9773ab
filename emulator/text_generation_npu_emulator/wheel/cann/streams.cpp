// Streams, events and captured graphs. Everything has finished when its launch returns, so a stream only has a name and
// an event only a time. What a graph holds, and running it again, is the emulator's: this file tells it when.

#include <atomic>
#include <chrono>

#include "stand_in.h"

using stand_in::fail;
using stand_in::hooks;
using stand_in::Stream;

namespace {

struct Event {
    bool is_external;  // lives outside of graphs, and orders them
    bool is_timed;
    std::chrono::steady_clock::time_point recorded_at;
};

std::atomic<int32_t> next_stream_id{1};
std::atomic<Stream*> capturing{nullptr};
std::atomic<uint64_t> captured_graph{0};  // its number, from the beginning of its capture on

aclError refuse_while_capturing(const char* what) {
    return fail(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, "%s is not allowed while a graph is captured", what);
}

// The host waits for a card.
aclError wait_for_card(const char* what) {
    return capturing.load() == nullptr ? hooks().wait() : refuse_while_capturing(what);
}

aclError mark(aclrtEvent event, int32_t what) {
    return hooks().mark(reinterpret_cast<uint64_t>(event), what);
}

uint64_t number_of(void* handle) { return reinterpret_cast<uint64_t>(handle); }
void* handle_of(uint64_t number) { return reinterpret_cast<void*>(number); }

}  // namespace

// Streams.

STAND_IN_API aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
    *stream = new Stream{stand_in::current_device(), next_stream_id++};
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtCreateStream(aclrtStream* stream) { return aclrtCreateStreamWithConfig(stream, 0, 0); }

STAND_IN_API aclError aclrtDestroyStream(aclrtStream stream) {
    delete static_cast<Stream*>(stream);
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }

STAND_IN_API aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
    *id = stream == nullptr ? 0 : static_cast<Stream*>(stream)->id;
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtStreamQuery(aclrtStream, aclrtStreamStatus* status) {
    *status = ACL_STREAM_STATUS_COMPLETE;
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtSynchronizeStream(aclrtStream) { return wait_for_card("waiting for a stream"); }
STAND_IN_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream, int32_t) {
    return wait_for_card("waiting for a stream");
}
STAND_IN_API aclError aclrtSynchronizeDevice() { return wait_for_card("waiting for the device"); }
STAND_IN_API aclError aclrtSynchronizeDeviceWithTimeout(int32_t) { return wait_for_card("waiting for the device"); }
STAND_IN_API aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) { return ACL_SUCCESS; }
STAND_IN_API aclError aclrtSetStreamAttribute(aclrtStream, aclrtStreamAttr, aclrtStreamAttrValue*) { return ACL_SUCCESS; }
STAND_IN_API aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t) { return ACL_SUCCESS; }

// Events.

STAND_IN_API aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flag) {
    *event = new Event{(flag & ACL_EVENT_EXTERNAL) != 0, (flag & ACL_EVENT_TIME_LINE) != 0, {}};
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag) {
    return aclrtCreateEventExWithFlag(event, flag);
}

STAND_IN_API aclError aclrtDestroyEvent(aclrtEvent event) {
    delete static_cast<Event*>(event);
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtRecordEvent(aclrtEvent event, aclrtStream) {
    static_cast<Event*>(event)->recorded_at = std::chrono::steady_clock::now();
    return static_cast<Event*>(event)->is_external ? mark(event, 0) : ACL_SUCCESS;
}

STAND_IN_API aclError aclrtStreamWaitEvent(aclrtStream, aclrtEvent event) {
    return static_cast<Event*>(event)->is_external ? mark(event, 1) : ACL_SUCCESS;
}

STAND_IN_API aclError aclrtResetEvent(aclrtEvent event, aclrtStream) {
    return static_cast<Event*>(event)->is_external ? mark(event, 2) : ACL_SUCCESS;
}

STAND_IN_API aclError aclrtSynchronizeEvent(aclrtEvent) { return wait_for_card("waiting for an event"); }

STAND_IN_API aclError aclrtQueryEventStatus(aclrtEvent, aclrtEventRecordedStatus* status) {
    *status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtQueryEventWaitStatus(aclrtEvent, aclrtEventWaitStatus* status) {
    *status = ACL_EVENT_WAIT_STATUS_COMPLETE;
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent start, aclrtEvent end) {
    if (!static_cast<Event*>(start)->is_timed || !static_cast<Event*>(end)->is_timed) {
        return fail(ACL_ERROR_RT_PARAM_INVALID, "an event was not made to be timed");
    }
    const auto passed = static_cast<Event*>(end)->recorded_at - static_cast<Event*>(start)->recorded_at;
    *milliseconds = std::chrono::duration<float, std::milli>(passed).count();
    return ACL_SUCCESS;
}

// Graphs.

STAND_IN_API aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode) {
    if (capturing.load() != nullptr) return fail(ACL_ERROR_STREAM_CAPTURE_CONFLICT, "a graph is being captured already");
    captured_graph = hooks().begin_capture();
    if (captured_graph == 0) return ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT;
    capturing = static_cast<Stream*>(stream);
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus* status, aclmdlRI* graph) {
    const bool is_active = stream != nullptr && stream == capturing.load();
    *status = is_active ? ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE : ACL_MODEL_RI_CAPTURE_STATUS_NONE;
    if (graph != nullptr) *graph = is_active ? handle_of(captured_graph) : nullptr;
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI* graph) {
    if (stream != capturing.load()) return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "this stream is not captured");
    capturing = nullptr;
    *graph = handle_of(captured_graph);
    return hooks().end_capture();
}

STAND_IN_API aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode*) { return ACL_SUCCESS; }
STAND_IN_API aclError aclmdlRIExecuteAsync(aclmdlRI graph, aclrtStream) { return hooks().replay(number_of(graph)); }

STAND_IN_API aclError aclmdlRIDestroy(aclmdlRI graph) {
    hooks().destroy(number_of(graph));
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclmdlRICaptureTaskGrpBegin(aclrtStream) { return hooks().begin_group(); }

STAND_IN_API aclError aclmdlRICaptureTaskGrpEnd(aclrtStream, aclrtTaskGrp* group) {
    *group = handle_of(hooks().end_group());
    return *group == nullptr ? ACL_ERROR_RT_STREAM_NOT_CAPTURED : ACL_SUCCESS;
}

STAND_IN_API aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream, aclrtTaskGrp group) {
    return hooks().begin_update(number_of(group));
}

STAND_IN_API aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream) { return hooks().end_update(); }
