#include "weft/checkpoint/torch_dist/torch_item.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/checkpoint/torch_dist/shown.h"

namespace weft {
namespace {

struct TypeName {
  std::string_view dtype, storage;
  StoredType type;
};

constexpr std::array<TypeName, 19> types = {{
    {"float32", "FloatStorage", StoredType::f32},
    {"bfloat16", "BFloat16Storage", StoredType::bf16},
    {"float16", "HalfStorage", StoredType::f16},
    {"float64", "DoubleStorage", StoredType::f64},
    {"uint8", "ByteStorage", StoredType::u8},
    {"int8", "CharStorage", StoredType::i8},
    {"int16", "ShortStorage", StoredType::i16},
    {"int32", "IntStorage", StoredType::i32},
    {"int64", "LongStorage", StoredType::i64},
    {"bool", "BoolStorage", StoredType::boolean},
    {"complex64", "ComplexFloatStorage", StoredType::c64},
    {"uint16", "", StoredType::u16},
    {"uint32", "", StoredType::u32},
    {"uint64", "", StoredType::u64},
    {"float8_e4m3fn", "", StoredType::f8_e4m3},
    {"float8_e5m2", "", StoredType::f8_e5m2},
    {"float8_e8m0fnu", "", StoredType::f8_e8m0},
    {"float8_e4m3fnuz", "", StoredType::f8_e4m3fnuz},
    {"float8_e5m2fnuz", "", StoredType::f8_e5m2fnuz},
}};

std::string folder_of(const ZipArchive& archive) {
  // The folder is named after the file that was written, or "archive".
  for (const ZipEntry& entry : archive.entries()) {
    const std::size_t slash = entry.name.find('/');
    if (slash != std::string_view::npos) return std::string(entry.name.substr(0, slash + 1));
  }
  throw UserError("{}: is a zip archive, but not one that torch.save wrote: its entries are in no folder",
                  archive.where());
}

std::span<const std::byte> pickle_of(const ZipArchive& archive, const std::string& folder) {
  if (const ZipEntry* order = archive.find(folder + "byteorder")) {
    const std::string_view text(reinterpret_cast<const char*>(order->bytes.data()), order->bytes.size());
    if (text != "little") {
      throw UserError("{}: its numbers are in byte order {}; Weft reads little-endian ones", archive.where(),
                      shown(text));
    }
  }
  return archive.at(folder + "data.pkl").bytes;
}

}  // namespace

std::optional<StoredType> stored_type_of(const PickledGlobal& dtype) {
  for (const TypeName& type : types)
    if (dtype == PickledGlobal{"torch", type.dtype}) return type.type;
  return std::nullopt;
}

std::optional<TorchTypeNames> torch_names_of(StoredType type) {
  for (const TypeName& known : types)
    if (known.type == type) return TorchTypeNames{known.dtype, known.storage};
  return std::nullopt;
}

std::optional<std::int64_t> bytes_of(const Shape& shape, StoredType type) {
  std::int64_t bytes = bits_of(type) / 8;
  bool empty = false;
  for (int d = 0; d < shape.dims(); ++d) {
    empty = empty || shape[d] == 0;
    // The product of the others must be a number too, in whatever order it is computed.
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(shape[d], 1), &bytes)) return std::nullopt;
  }
  if (bytes > std::int64_t{1} << 62) return std::nullopt;
  return empty ? 0 : bytes;
}

Shape shape_of(const PickleValue& value, const std::string& where, std::string_view what) {
  const PickleValue* tuple = &value;
  if (is_object_of(value, "torch", "Size") && value.object().arguments.items().size() == 1) {
    tuple = &value.object().arguments.items()[0];
  }
  if (!tuple->is(PickleKind::tuple) && !tuple->is(PickleKind::list)) {
    throw UserError("{}: {} must be a torch.Size, is {}", where, what, describe(value));
  }
  if (tuple->items().size() > Shape::max_dims) {
    throw UserError("{}: {} has {} dims, Weft reads at most {}", where, what, tuple->items().size(), Shape::max_dims);
  }
  Shape shape;
  for (const PickleValue& extent : tuple->items()) {
    if (!extent.is(PickleKind::integer) || extent.integer() < 0) {
      throw UserError("{}: {} holds {}, which is not a number of elements", where, what, describe(extent));
    }
    shape.append(extent.integer());
  }
  return shape;
}

TorchItem::TorchItem(std::span<const std::byte> bytes, const std::string& where)
    : archive_(bytes, where), folder_(folder_of(archive_)), pickle_(pickle_of(archive_, folder_), where) {}

SavedTensor TorchItem::tensor(const PickleValue& value) const {
  // torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata]);
  // _v3 has the dtype after the hooks, and a storage of bytes; _rebuild_parameter has a tensor as its first argument.
  const PickleValue* made = &value;
  if (is_object_of(value, "torch._utils", "_rebuild_parameter") && !value.object().arguments.items().empty()) {
    made = &value.object().arguments.items()[0];
  }
  const bool typed = is_object_of(*made, "torch._utils", "_rebuild_tensor_v2");
  if (!typed && !is_object_of(*made, "torch._utils", "_rebuild_tensor_v3")) {
    throw UserError("{}: must be a tensor, is {}", archive_.where(), describe(*made));
  }
  return place(made->object().arguments.items(), typed);
}

SavedTensor TorchItem::place(const std::vector<PickleValue>& arguments, bool typed) const {
  const std::string& where = archive_.where();
  const auto fail = [&](std::string_view what) { throw UserError("{}: damaged: {}", where, what); };
  if (arguments.size() < (typed ? 6u : 7u)) fail(fmt::format("a tensor made of {} arguments", arguments.size()));
  if (!arguments[0].is(PickleKind::persistent) || !arguments[0].items()[0].is(PickleKind::tuple)) {
    fail("a tensor whose storage is " + describe(arguments[0]));
  }
  // ("storage", class, key, device, elements)
  const std::vector<PickleValue>& id = arguments[0].items()[0].items();
  if (id.size() < 5 || !id[1].is(PickleKind::global) || !id[2].is(PickleKind::text))
    fail("a storage that is not named");
  const PickledGlobal& named = typed                                 ? id[1].global()
                               : arguments[6].is(PickleKind::global) ? arguments[6].global()
                                                                     : id[1].global();
  std::optional<StoredType> type;
  for (const TypeName& known : types) {
    const std::string_view name = typed ? known.storage : known.dtype;
    if (!name.empty() && named == PickledGlobal{"torch", name}) type = known.type;
  }
  if (!type) throw UserError("{}: a tensor of {}.{}, a type that Weft does not read", where, named.module, named.name);

  SavedTensor tensor;
  tensor.type = *type;
  tensor.shape = shape_of(arguments[2], where, "the tensor's size");
  const Shape strides = shape_of(arguments[3], where, "the tensor's stride");
  if (strides.dims() != tensor.shape.dims()) fail("a tensor whose size and stride differ in dims");
  if (!arguments[1].is(PickleKind::integer) || arguments[1].integer() < 0)
    fail("a tensor without a place in its storage");
  std::int64_t last = arguments[1].integer();  // element of the storage
  bool beyond = false;
  for (int d = 0; d < strides.dims(); ++d) {
    tensor.strides[static_cast<std::size_t>(d)] = strides[d];
    std::int64_t reach = 0;
    beyond = beyond || __builtin_mul_overflow(std::max<std::int64_t>(tensor.shape[d] - 1, 0), strides[d], &reach) ||
             __builtin_add_overflow(last, reach, &last);
  }
  const std::string key = folder_ + "data/" + std::string(id[2].text().substr(0, 64));
  tensor.storage = &archive_.at(key);
  const std::int64_t size = bits_of(*type) / 8;
  const auto stored = static_cast<std::int64_t>(tensor.storage->bytes.size());
  if (bytes_of(tensor.shape, *type) == 0) return tensor;
  if (beyond || last >= stored / size) {
    throw UserError("{}: damaged: a tensor {} of {} reaches beyond its storage, {} of {} bytes", where,
                    to_text(tensor.shape), weft::name_of(*type), shown(key), stored);
  }
  tensor.data = tensor.storage->bytes.data() + arguments[1].integer() * size;
  return tensor;
}

}  // namespace weft
