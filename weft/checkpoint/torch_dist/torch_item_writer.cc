#include "weft/checkpoint/torch_dist/torch_item_writer.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "weft/base/error.h"
#include "weft/checkpoint/torch_dist/pickle_writer.h"
#include "weft/checkpoint/torch_dist/torch_item.h"

namespace weft {
namespace {

constexpr int protocol = 2;  // of torch.save

void write_extents(PickleWriter& out, const std::vector<std::int64_t>& extents) {
  out.begin_tuple(extents.size());
  for (const std::int64_t extent : extents) out.integer(extent);
  out.end_tuple(extents.size());
}

// torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks), or _v3 with the dtype at the end.
std::string tensor_pickle(const TorchTypeNames& names, const Shape& shape, std::uint64_t bytes) {
  const bool typed = !names.storage.empty();
  std::vector<std::int64_t> extents, strides;
  for (int d = 0; d < shape.dims(); ++d) extents.push_back(shape[d]);
  std::int64_t stride = 1;
  for (int d = shape.dims() - 1; d >= 0; --d) {
    strides.push_back(stride);
    stride *= std::max<std::int64_t>(shape[d], 1);
  }
  std::reverse(strides.begin(), strides.end());

  PickleWriter out(protocol);
  out.global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  out.begin_tuple(typed ? 6 : 7);
  out.begin_tuple(5);
  out.text("storage");
  typed ? out.global("torch", names.storage) : out.global("torch.storage", "UntypedStorage");
  out.text("0");
  out.text("cpu");
  out.integer(typed ? shape.elements() : static_cast<std::int64_t>(bytes));
  out.end_tuple(5);
  out.persistent();
  out.integer(0);
  write_extents(out, extents);
  write_extents(out, strides);
  out.boolean(false);
  out.global("collections", "OrderedDict");
  out.empty_tuple();
  out.reduce();
  if (!typed) out.global("torch", names.dtype);
  out.end_tuple(typed ? 6 : 7);
  out.reduce();
  return out.finish();
}

// The entries before and after the storages.
void begin_item(ZipWriter& zip, const std::string& root, const std::string& pickle) {
  zip.add(root + "/data.pkl", pickle);
  zip.add(root + "/.format_version", "1");
  zip.add(root + "/.storage_alignment", "64");
  zip.add(root + "/byteorder", "little");
}

void end_item(ZipWriter& zip, const std::string& root) {
  zip.add(root + "/version", "3\n");
  zip.finish();
}

}  // namespace

std::uint64_t put_saved_tensor(const PutBytes& put, StoredType type, const Shape& shape,
                               std::span<const std::byte> elements) {
  const std::optional<TorchTypeNames> names = torch_names_of(type);
  WEFT_CHECK(names, "PyTorch has no type {}", name_of(type));
  WEFT_CHECK(bytes_of(shape, type) == static_cast<std::int64_t>(elements.size()), "{} bytes for {} {}", elements.size(),
             name_of(type), to_text(shape));
  ZipWriter zip(put);
  begin_item(zip, "archive", tensor_pickle(*names, shape, elements.size()));
  zip.begin("archive/data/0", elements.size());
  zip.write(elements);
  zip.end();
  end_item(zip, "archive");
  return zip.size();
}

std::string saved_object(const PythonValue& value, const std::string& root) {
  std::string item;
  ZipWriter zip([&](std::span<const std::byte> bytes) {
    item.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  begin_item(zip, root, pickle_of(value, protocol));
  end_item(zip, root);
  return item;
}

}  // namespace weft
