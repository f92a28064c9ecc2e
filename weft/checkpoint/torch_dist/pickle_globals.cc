#include "weft/checkpoint/torch_dist/pickle_globals.h"

#include <algorithm>
#include <array>
#include <span>

namespace weft {
namespace {

using Names = std::span<const std::string_view>;

constexpr std::array<std::string_view, 41> torch = {
    // dtypes, which are pickled by their names
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16",
    "uint8", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn_x2",
    // storages, which name a tensor's type
    "DoubleStorage", "FloatStorage", "HalfStorage", "BFloat16Storage", "LongStorage", "IntStorage", "ShortStorage",
    "CharStorage", "ByteStorage", "BoolStorage", "ComplexFloatStorage", "ComplexDoubleStorage", "UntypedStorage",
    "TypedStorage",
    // others
    "Size", "device", "strided", "contiguous_format", "preserve_format", "Tensor"};
constexpr std::array<std::string_view, 3> torch_utils = {"_rebuild_tensor_v2", "_rebuild_tensor_v3",
                                                         "_rebuild_parameter"};
constexpr std::array<std::string_view, 2> torch_storage = {"UntypedStorage", "TypedStorage"};
constexpr std::array<std::string_view, 1> torch_serialization = {"_get_layout"};
constexpr std::array<std::string_view, 9> dcp_metadata = {
    "Metadata",           "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
    "TensorProperties",   "_MEM_FORMAT_ENCODING",  "MetadataIndex",        "StorageMeta",
    "MEM_FORMAT_ENCODING"};
constexpr std::array<std::string_view, 2> dcp_filesystem = {"_StorageInfo", "_StoragePrefix"};
constexpr std::array<std::string_view, 5> dcp_planner = {"SavePlan", "WriteItem", "WriteItemType", "TensorWriteData",
                                                         "BytesIOWriteData"};
constexpr std::array<std::string_view, 4> collections = {"OrderedDict", "defaultdict", "deque", "Counter"};
constexpr std::array<std::string_view, 1> argparse = {"Namespace"};
constexpr std::array<std::string_view, 1> types = {"SimpleNamespace"};
constexpr std::array<std::string_view, 6> pathlib = {"PosixPath",       "PurePosixPath", "WindowsPath",
                                                     "PureWindowsPath", "Path",          "PurePath"};
constexpr std::array<std::string_view, 1> codecs = {"encode"};
constexpr std::array<std::string_view, 1> io = {"BytesIO"};
constexpr std::array<std::string_view, 1> signals = {"Signals"};
constexpr std::array<std::string_view, 3> datetime = {"datetime", "timedelta", "date"};
constexpr std::array<std::string_view, 2> numpy = {"ndarray", "dtype"};
constexpr std::array<std::string_view, 2> numpy_multiarray = {"_reconstruct", "scalar"};
constexpr std::array<std::string_view, 1> numpy_numeric = {"_frombuffer"};
constexpr std::array<std::string_view, 13> builtins = {"set",   "frozenset", "bytearray", "bytes", "complex",
                                                       "slice", "range",     "list",      "dict",  "int",
                                                       "float", "str",       "object"};
constexpr std::array<std::string_view, 2> copyreg = {"_reconstructor", "__newobj__"};

struct Module {
  std::string_view name;
  Names names;
};

// Some names differ between versions of Python, numpy and torch.
constexpr std::array<Module, 27> modules = {{
    {"torch", torch},
    {"torch._utils", torch_utils},
    {"torch.storage", torch_storage},
    {"torch.serialization", torch_serialization},
    {"torch.distributed.checkpoint.metadata", dcp_metadata},
    {"torch.distributed._shard.sharded_tensor.metadata", dcp_metadata},
    {"torch.distributed.checkpoint.filesystem", dcp_filesystem},
    {"torch.distributed.checkpoint.planner", dcp_planner},
    {"collections", collections},
    {"argparse", argparse},
    {"types", types},
    {"pathlib", pathlib},
    {"pathlib._local", pathlib},
    {"_codecs", codecs},
    {"_io", io},
    {"io", io},
    {"signal", signals},
    {"datetime", datetime},
    {"numpy", numpy},
    {"numpy.core.multiarray", numpy_multiarray},
    {"numpy._core.multiarray", numpy_multiarray},
    {"numpy.core.numeric", numpy_numeric},
    {"numpy._core.numeric", numpy_numeric},
    {"builtins", builtins},
    {"__builtin__", builtins},
    {"copyreg", copyreg},
    {"copy_reg", copyreg},
}};

// Whole packages: the arguments of a run hold members of enums and small configurations, new ones in every version.
constexpr std::array<std::string_view, 2> packages = {"megatron.", "transformer_engine.common.recipe"};

}  // namespace

bool is_accepted_global(std::string_view module, std::string_view name) {
  if (std::any_of(packages.begin(), packages.end(), [&](std::string_view p) { return module.starts_with(p); })) {
    return true;
  }
  return std::any_of(modules.begin(), modules.end(), [&](const Module& m) {
    return m.name == module && std::find(m.names.begin(), m.names.end(), name) != m.names.end();
  });
}

}  // namespace weft
