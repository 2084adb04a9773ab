// Legacy ops. torch_npu describes one, with its tensors, and asks for it to be compiled and run. The one that is here
// moves a tensor from one format to another; torch_npu decides itself when to, and keeps the books of formats.

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "stand_in.h"

using stand_in::fail;

struct aclTensorDesc {
    aclDataType type;
    aclFormat format;            // of the tensor as it is meant
    std::vector<int64_t> dims;   // the same
    aclFormat storage_format;    // of its bytes
};

struct aclDataBuffer {
    void* address;
    size_t bytes;
};

struct aclopAttr {};

namespace {

std::array<int64_t, 64> switches{};

constexpr int64_t kRows = 16;  // of a block of FRACTAL_NZ

size_t bytes_of(aclDataType type) {
    switch (type) {
        case ACL_INT8:
        case ACL_UINT8:
        case ACL_BOOL:
            return 1;
        case ACL_FLOAT16:
        case ACL_BF16:
        case ACL_INT16:
        case ACL_UINT16:
            return 2;
        case ACL_FLOAT:
        case ACL_INT32:
        case ACL_UINT32:
            return 4;
        case ACL_INT64:
        case ACL_UINT64:
        case ACL_DOUBLE:
            return 8;
        default:
            return 0;
    }
}

// Where an element of a matrix lies in FRACTAL_NZ: blocks of 16 rows and c0 columns, row-major inside, in column-major
// order. c0 is 32 bytes' worth, counting an element as at most two bytes.
struct Fractal {
    int64_t rows, columns, c0, blocks_down, blocks_across;

    Fractal(const std::vector<int64_t>& dims, size_t element)
        : rows(dims[dims.size() - 2]),
          columns(dims[dims.size() - 1]),
          c0(element == 1 ? 32 : 16),
          blocks_down((rows + kRows - 1) / kRows),
          blocks_across((columns + c0 - 1) / c0) {}

    int64_t size() const { return blocks_down * blocks_across * kRows * c0; }

    int64_t place(int64_t row, int64_t column) const {
        return ((column / c0 * blocks_down + row / kRows) * kRows + row % kRows) * c0 + column % c0;
    }
};

int64_t product(const std::vector<int64_t>& dims) {
    return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

bool is_plain(aclFormat format) { return format == ACL_FORMAT_ND || format == ACL_FORMAT_NCHW; }

bool is_switch(aclSysParamOpt option) { return option >= 0 && option < static_cast<int>(switches.size()); }

}  // namespace

STAND_IN_API aclTensorDesc* aclCreateTensorDesc(aclDataType type, int count, const int64_t* dims, aclFormat format) {
    return new aclTensorDesc{type, format, std::vector<int64_t>(dims, dims + (dims == nullptr ? 0 : count)), format};
}

STAND_IN_API void aclDestroyTensorDesc(const aclTensorDesc* desc) { delete desc; }
STAND_IN_API aclDataType aclGetTensorDescType(const aclTensorDesc* desc) { return desc->type; }
STAND_IN_API aclFormat aclGetTensorDescFormat(const aclTensorDesc* desc) { return desc->format; }
STAND_IN_API size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) { return desc->dims.size(); }

STAND_IN_API aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* size) {
    if (index >= desc->dims.size()) return fail(ACL_ERROR_INVALID_PARAM, "a tensor has no axis %zu", index);
    *size = desc->dims[index];
    return ACL_SUCCESS;
}

STAND_IN_API void aclSetTensorDescName(aclTensorDesc*, const char*) {}

STAND_IN_API aclError aclSetTensorFormat(aclTensorDesc* desc, aclFormat format) {
    desc->storage_format = format;
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclSetTensorShape(aclTensorDesc*, int, const int64_t*) { return ACL_SUCCESS; }
STAND_IN_API aclError aclSetTensorPlaceMent(aclTensorDesc*, aclMemType) { return ACL_SUCCESS; }

STAND_IN_API aclDataBuffer* aclCreateDataBuffer(void* address, size_t bytes) { return new aclDataBuffer{address, bytes}; }

STAND_IN_API aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
    delete buffer;
    return ACL_SUCCESS;
}

STAND_IN_API aclopAttr* aclopCreateAttr() { return new aclopAttr; }
STAND_IN_API void aclopDestroyAttr(const aclopAttr* attributes) { delete attributes; }
STAND_IN_API aclError aclopSetAttrBool(aclopAttr*, const char*, uint8_t) { return ACL_SUCCESS; }
STAND_IN_API aclError aclopSetAttrInt(aclopAttr*, const char*, int64_t) { return ACL_SUCCESS; }
STAND_IN_API aclError aclopSetAttrFloat(aclopAttr*, const char*, float) { return ACL_SUCCESS; }
STAND_IN_API aclError aclopSetAttrString(aclopAttr*, const char*, const char*) { return ACL_SUCCESS; }
STAND_IN_API aclError aclopSetAttrDataType(aclopAttr*, const char*, aclDataType) { return ACL_SUCCESS; }
STAND_IN_API aclError aclopSetAttrListBool(aclopAttr*, const char*, int, const uint8_t*) { return ACL_SUCCESS; }
STAND_IN_API aclError aclopSetAttrListInt(aclopAttr*, const char*, int, const int64_t*) { return ACL_SUCCESS; }
STAND_IN_API aclError aclopSetAttrListFloat(aclopAttr*, const char*, int, const float*) { return ACL_SUCCESS; }
STAND_IN_API aclError aclopSetAttrListListInt(aclopAttr*, const char*, int, const int*, const int64_t* const[]) {
    return ACL_SUCCESS;
}

namespace {

aclError change_format(const aclTensorDesc& from, const aclDataBuffer& source, const aclTensorDesc& to,
                       const aclDataBuffer& target) {
    const size_t element = bytes_of(from.type);
    const bool packs = to.storage_format == ACL_FORMAT_FRACTAL_NZ;
    const bool unpacks = from.storage_format == ACL_FORMAT_FRACTAL_NZ;
    if (element == 0 || from.type != to.type || (packs ? !is_plain(from.storage_format) : !is_plain(to.storage_format)) ||
        (!unpacks && !is_plain(from.storage_format))) {
        return fail(ACL_ERROR_OP_NOT_FOUND, "Identity from format %d to %d, types %d to %d: there is no kernel for it",
                    from.storage_format, to.storage_format, from.type, to.type);
    }
    const auto* read = static_cast<const char*>(source.address);
    auto* written = static_cast<char*>(target.address);
    if (packs == unpacks) {
        std::memcpy(written, read, std::min(source.bytes, target.bytes));
        return ACL_SUCCESS;
    }
    const auto& dims = packs ? from.dims : to.dims;
    const Fractal fractal(dims, element);
    const int64_t plain = fractal.rows * fractal.columns;
    const int64_t count = plain == 0 ? 0 : product(dims) / plain;
    const size_t needed = static_cast<size_t>(count * fractal.size()) * element;
    if ((packs ? target.bytes : source.bytes) < needed) {
        return fail(ACL_ERROR_INVALID_PARAM, "Identity: FRACTAL_NZ takes %zu bytes, not %zu", needed,
                    packs ? target.bytes : source.bytes);
    }
    if (packs) std::memset(written, 0, needed);
    for (int64_t matrix = 0; matrix < count; ++matrix) {
        for (int64_t row = 0; row < fractal.rows; ++row) {
            for (int64_t column = 0; column < fractal.columns; ++column) {
                const int64_t here = matrix * plain + row * fractal.columns + column;
                const int64_t there = matrix * fractal.size() + fractal.place(row, column);
                std::memcpy(written + (packs ? there : here) * static_cast<int64_t>(element),
                            read + (packs ? here : there) * static_cast<int64_t>(element), element);
            }
        }
    }
    return ACL_SUCCESS;
}

}  // namespace

STAND_IN_API aclError aclopCompileAndExecute(const char* name, int, const aclTensorDesc* const from[],
                                             const aclDataBuffer* const sources[], int, const aclTensorDesc* const to[],
                                             aclDataBuffer* const targets[], const aclopAttr*, aclopEngineType,
                                             aclopCompileType, const char*, aclrtStream) {
    if (std::strcmp(name, "Identity") == 0) return change_format(*from[0], *sources[0], *to[0], *targets[0]);
    return fail(ACL_ERROR_OP_NOT_FOUND, "legacy op %s: there is no kernel for it", name);
}

// Options. What they change is how ops are compiled.

STAND_IN_API aclError aclSetCompileopt(aclCompileOpt, const char*) { return ACL_SUCCESS; }
STAND_IN_API size_t aclGetCompileoptSize(aclCompileOpt) { return 1; }

STAND_IN_API aclError aclGetCompileopt(aclCompileOpt, char* value, size_t length) {
    std::memset(value, 0, length);
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) {
    if (!is_switch(option)) return fail(ACL_ERROR_INVALID_PARAM, "there is no option %d", static_cast<int>(option));
    switches[static_cast<size_t>(option)] = value;
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
    if (!is_switch(option)) return fail(ACL_ERROR_INVALID_PARAM, "there is no option %d", static_cast<int>(option));
    *value = switches[static_cast<size_t>(option)];
    return ACL_SUCCESS;
}

STAND_IN_API aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value) {
    return aclrtSetSysParamOpt(option, value);
}

STAND_IN_API aclError aclrtCtxGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
    return aclrtGetSysParamOpt(option, value);
}
