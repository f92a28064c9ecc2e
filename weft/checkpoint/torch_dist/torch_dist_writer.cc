#include "weft/checkpoint/torch_dist/torch_dist_writer.h"

#include <algorithm>
#include <utility>

#include "weft/base/error.h"
#include "weft/checkpoint/tiling.h"
#include "weft/checkpoint/torch_dist/dcp_metadata_writer.h"
#include "weft/checkpoint/torch_dist/shown.h"
#include "weft/checkpoint/torch_dist/torch_item.h"
#include "weft/checkpoint/torch_dist/torch_item_writer.h"

namespace weft {

ShardedTensorToWrite whole_sharded_tensor(std::string name, StoredType type, const Shape& shape,
                                          std::function<void(std::byte* out)> fill) {
  ShardedTensorToWrite tensor{std::move(name), type, shape, {}};
  tensor.chunks.push_back({Box::whole(shape), std::move(fill)});
  return tensor;
}

TorchDistWriter::TorchDistWriter(std::filesystem::path folder, TorchDistWriterOptions options)
    : folder_(std::move(folder)), options_(std::move(options)) {}

void TorchDistWriter::claim(const std::string& name) {
  WEFT_CHECK(names_.insert(name).second, "two tensors or objects named '{}'", name);
}

void TorchDistWriter::begin_place(std::size_t bytes) {
  if (file_ && position_ + bytes > options_.max_file_bytes) {
    file_->commit();
    file_.reset();
  }
  if (!file_) {
    // As rank 0 of Megatron would name them.
    metadata_.files.push_back(fmt::format("__0_{}.distcp", metadata_.files.size()));
    file_ = std::make_unique<NewFile>(folder_ / metadata_.files.back());
    position_ = 0;
  }
  begin_ = position_;
}

StoragePlace TorchDistWriter::end_place() { return {metadata_.files.size() - 1, begin_, position_ - begin_}; }

void TorchDistWriter::put(std::span<const std::byte> bytes) {
  file_->write(bytes);
  position_ += bytes.size();
}

void TorchDistWriter::write(const ShardedTensorToWrite& tensor) {
  claim(tensor.name);
  if (!torch_names_of(tensor.type)) {
    throw UserError("tensor {} has type {}, which PyTorch lacks; it cannot be in a torch_dist checkpoint",
                    shown(tensor.name), name_of(tensor.type));
  }
  std::vector<const Box*> boxes;
  for (const ChunkToWrite& chunk : tensor.chunks) boxes.push_back(&chunk.box);
  try {
    check_tiling(tensor.shape, std::move(boxes), tensor.name, "chunks");
  } catch (const UserError& error) {  // of a reader; here the writer's caller is wrong
    throw BugError(error.what());
  }
  ShardedTensor written;
  written.name = tensor.name;
  written.type = tensor.type;
  written.shape = tensor.shape;

  std::vector<std::byte> elements;
  for (const ChunkToWrite& chunk : tensor.chunks) {
    elements.resize(static_cast<std::size_t>(bytes_of(chunk.box.extent, tensor.type).value()));
    chunk.fill(elements.data());
    begin_place(elements.size());
    put_saved_tensor([&](std::span<const std::byte> bytes) { put(bytes); }, tensor.type, chunk.box.extent, elements);
    written.chunks.push_back({chunk.box, end_place()});
    bytes_ += elements.size();
    if (options_.written) options_.written(elements.size());
  }
  metadata_.tensors.push_back(std::move(written));
}

void TorchDistWriter::write_item(const std::string& name, std::span<const std::byte> item) {
  claim(name);
  begin_place(item.size());
  put(item);
  metadata_.objects.push_back({name, end_place()});
}

void TorchDistWriter::write_object(const std::string& name, const PythonValue& value) {
  const std::string item = saved_object(PythonValue::list({value}));
  write_item(name, std::as_bytes(std::span(item)));
}

void TorchDistWriter::write_shared_state(const PythonValue& state) {
  write_object("common_state/shard_0_1", state);
  // Megatron Core up to 0.16 looks for the file alone; later ones prefer it where it is.
  write_file_atomically(folder_ / "common.pt", saved_object(state, "common"));
}

TorchDistWriter::Written TorchDistWriter::finish() {
  if (file_) file_->commit();
  file_.reset();
  write_file_atomically(folder_ / ".metadata", pickle_of(metadata_));
  write_file_atomically(folder_ / "metadata.json",
                        R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})");
  return {metadata_.tensors.size(), metadata_.files.size(), bytes_};
}

}  // namespace weft
