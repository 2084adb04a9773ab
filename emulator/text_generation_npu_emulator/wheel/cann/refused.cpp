// Functions that are here because torch_npu links to them. Whoever calls one is told that it is not there.

#include "stand_in.h"

namespace {

int refuse(const char* name) { return stand_in::fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "%s: not part of this runtime", name); }

}  // namespace

// The linker takes a function by its name alone. These are told apart by assembler names, since the header has others
// of the same names, with the parameters that are not looked at here.
#define REFUSED(name)                                                              \
    STAND_IN_API int refused_##name() __asm__(#name);                              \
    STAND_IN_API int refused_##name() { return refuse(#name); }

REFUSED(aclmdlFinalizeDump)
REFUSED(aclmdlInitDump)
REFUSED(aclmdlSetDump)
REFUSED(aclrtBinaryGetFunction)
REFUSED(aclrtBinaryLoadFromData)
REFUSED(aclrtDeviceGetBareTgid)
REFUSED(aclrtFreePhysical)
REFUSED(aclrtGetFunctionAddr)
REFUSED(aclrtMallocPhysical)
REFUSED(aclrtMapMem)
REFUSED(aclrtMemExportToShareableHandle)
REFUSED(aclrtMemImportFromShareableHandle)
REFUSED(aclrtMemSetPidToShareableHandle)
REFUSED(aclrtProcessReport)
REFUSED(aclrtReleaseMemAddress)
REFUSED(aclrtReserveMemAddress)
REFUSED(aclrtUnmapMem)
REFUSED(rtDevBinaryRegister)
REFUSED(rtFunctionRegister)
REFUSED(rtGetC2cCtrlAddr)
REFUSED(rtKernelLaunch)

// The profiler: nothing is measured, and nothing goes wrong by that.
#define IGNORED(name)                                 \
    STAND_IN_API long ignored_##name() __asm__(#name); \
    STAND_IN_API long ignored_##name() { return 0; }

IGNORED(MsprofGetHashId)
IGNORED(MsprofRegisterCallback)
IGNORED(MsprofReportAdditionalInfo)
IGNORED(MsprofReportApi)
IGNORED(MsprofReportCompactInfo)
IGNORED(MsprofSysCycleTime)

// ATB, CANN's library for transformers: no operation can be made.
namespace atb {

class Context;
class Operation;
struct Tensor;

namespace infer {
struct ElewiseParam;
struct GroupTopkParam;
struct LinearParam;
struct PagedAttentionParam;
struct ReshapeAndCacheParam;
struct RmsNormParam;
struct RopeParam;
struct SelfAttentionParam;
}  // namespace infer

#define ATB_API __attribute__((visibility("default")))

ATB_API int CreateContext(Context**) { return refuse("atb::CreateContext"); }
ATB_API int DestroyContext(Context*) { return refuse("atb::DestroyContext"); }
ATB_API int DestroyOperation(Operation*) { return refuse("atb::DestroyOperation"); }

template <typename Parameters>
ATB_API int CreateOperation(const Parameters&, Operation**) {
    return refuse("atb::CreateOperation");
}

template ATB_API int CreateOperation(const infer::ElewiseParam&, Operation**);
template ATB_API int CreateOperation(const infer::GroupTopkParam&, Operation**);
template ATB_API int CreateOperation(const infer::LinearParam&, Operation**);
template ATB_API int CreateOperation(const infer::PagedAttentionParam&, Operation**);
template ATB_API int CreateOperation(const infer::ReshapeAndCacheParam&, Operation**);
template ATB_API int CreateOperation(const infer::RmsNormParam&, Operation**);
template ATB_API int CreateOperation(const infer::RopeParam&, Operation**);
template ATB_API int CreateOperation(const infer::SelfAttentionParam&, Operation**);

class Utils {
public:
    static ATB_API uint64_t GetTensorSize(const Tensor&);
};

uint64_t Utils::GetTensorSize(const Tensor&) { return static_cast<uint64_t>(refuse("atb::Utils::GetTensorSize")) * 0; }

}  // namespace atb
