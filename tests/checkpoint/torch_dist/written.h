// Pickles, archives and checkpoints as Python would write them, byte by byte, so that tests can damage any part.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/checkpoint/model_folder.h"

namespace weft::written {

inline std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
std::string little(std::uint64_t value, int bytes);

// Values of a pickle.
inline const std::string none = "N", no_arguments = ")", yes = "\x88", no = "\x89";
std::string text(const std::string& value);
std::string integer(std::int64_t value);
std::string tuple(const std::vector<std::string>& items);
std::string size(const std::vector<std::int64_t>& extents);  // torch.Size
std::string list(const std::vector<std::string>& items);
std::string dict(const std::vector<std::pair<std::string, std::string>>& entries);    // keys are values too
std::string fields(const std::vector<std::pair<std::string, std::string>>& entries);  // keys are text
std::string global(const std::string& module, const std::string& name);
std::string call(const std::string& callee, const std::string& arguments);
std::string object(const std::string& callee, const std::string& state);
std::string pickle(const std::string& value, int protocol = 2);

// A zip archive as torch.save writes it; `zip64`: with the end records that it adds.
struct Entry {
  std::string name, bytes;
};
std::string zip(const std::vector<Entry>& entries, bool zip64 = true);
// A tensor whose storage has `data`; strides in elements, {}: row-major.
struct TensorItem {
  std::string storage = "FloatStorage";
  std::vector<std::int64_t> shape, strides;
  std::string data;
  std::int64_t offset = 0;
};
std::string tensor_pickle(const TensorItem& item);
std::string saved_tensor(const TensorItem& item);

// A distributed checkpoint of F32 tensors in one storage file.
struct Chunk {
  std::vector<std::int64_t> offset, size;
  std::string item;  // bytes in the storage file; "": as saved_tensor writes it, with elements 0, 1, 2, ...
  std::string file = "__0_0.distcp";
};
struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<Chunk> chunks;
  std::string dtype = "float32", layout = "torch.strided";
};
struct Checkpoint {
  std::vector<Tensor> tensors;
  std::vector<std::pair<std::string, std::string>> objects;  // name, item
  // The contents of .metadata; changed to damage it.
  std::vector<std::pair<std::string, std::string>> state_dict, storage;
  std::string data;  // of __0_0.distcp

  // Fills the last three.
  void lay_out();
  std::string metadata() const;  // of .metadata
  void write(const ModelFolder& folder) const;
};
std::string storage_index(const std::string& name, const std::vector<std::int64_t>& offset);
std::string storage_info(const std::string& file, std::int64_t offset, std::int64_t length);

// Two chunks of a [4, 2] tensor "a", a whole [3] tensor "b", the shared state with args and iteration 7.
Checkpoint small_checkpoint();

}  // namespace weft::written
