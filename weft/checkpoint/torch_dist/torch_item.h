// What torch.save wrote: a zip archive with the pickle ROOT/data.pkl, and the storages of its tensors as ROOT/data/KEY.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/shape.h"
#include "weft/checkpoint/stored_type.h"
#include "weft/checkpoint/torch_dist/pickle.h"
#include "weft/checkpoint/torch_dist/zip_archive.h"

namespace weft {

// "torch.bfloat16" as the module and name that pickles have; absent: Weft has no such type.
std::optional<StoredType> stored_type_of(const PickledGlobal& dtype);
// How PyTorch names a type, both names of module torch; storage "": storages of this type are bytes, and a tensor of it is
// made by _rebuild_tensor_v3.
struct TorchTypeNames {
  std::string_view dtype, storage;
};
std::optional<TorchTypeNames> torch_names_of(StoredType type);  // absent: PyTorch has no such type

struct SavedTensor {
  StoredType type = StoredType::f32;
  Shape shape;
  std::array<std::int64_t, Shape::max_dims> strides{};  // in elements; 0 where a row is repeated
  const std::byte* data = nullptr;                      // of the element 0, 0, ...; all elements lie in the storage
  const ZipEntry* storage = nullptr;
};

class TorchItem {
 public:
  // The bytes must outlive it. UserError that begins with `where`.
  TorchItem(std::span<const std::byte> bytes, const std::string& where);

  const PickleValue& root() const { return pickle_.root(); }
  const Pickle& pickle() const { return pickle_; }
  const ZipArchive& archive() const { return archive_; }
  // UserError unless the value is a tensor of at most five dims, of a type that Weft knows, within its storage.
  SavedTensor tensor(const PickleValue& value) const;

 private:
  SavedTensor place(const std::vector<PickleValue>& arguments, bool typed) const;

  ZipArchive archive_;
  std::string folder_;  // "archive/"
  Pickle pickle_;
};

// The extents of a tuple or a torch.Size; UserError "WHERE: WHAT ..." unless they are at most five numbers that are not
// negative.
Shape shape_of(const PickleValue& value, const std::string& where, std::string_view what);
// Bytes of that many elements; absent: more than 2^62.
std::optional<std::int64_t> bytes_of(const Shape& shape, StoredType type);

}  // namespace weft
