#include "weft/checkpoint/torch_dist/dcp_metadata_writer.h"

#include <string_view>

#include "weft/base/error.h"
#include "weft/checkpoint/torch_dist/pickle_writer.h"
#include "weft/checkpoint/torch_dist/torch_item.h"

namespace weft {
namespace {

constexpr std::string_view metadata_module = "torch.distributed.checkpoint.metadata",
                           filesystem_module = "torch.distributed.checkpoint.filesystem";

class MetadataWriter {
 public:
  explicit MetadataWriter(const DcpMetadata& metadata) : metadata_(metadata), out_(4) {}

  std::string write() {
    begin_object(metadata_module, "Metadata");
    out_.text("state_dict_metadata");
    out_.begin_dict();
    for (const ShardedTensor& tensor : metadata_.tensors) write_tensor(tensor);
    for (const StoredObject& object : metadata_.objects) {
      out_.text(object.name);
      out_.global(metadata_module, "BytesStorageMetadata");
      out_.empty_tuple();
      out_.new_object();
    }
    out_.end_dict();
    out_.text("planner_data");
    out_.none();
    out_.text("storage_data");
    out_.begin_dict();
    for (const ShardedTensor& tensor : metadata_.tensors) {
      std::int64_t index = 0;
      for (const TensorChunk& chunk : tensor.chunks) {
        begin_object(metadata_module, "MetadataIndex");
        out_.text("fqn");
        out_.text(tensor.name);
        out_.text("index");
        out_.integer(index++);
        out_.text("offset");
        write_size(begin_of(chunk.box));
        end_object();
        write_place(chunk.place);
      }
    }
    for (const StoredObject& object : metadata_.objects) {
      begin_object(metadata_module, "MetadataIndex");
      out_.text("fqn");
      out_.text(object.name);
      out_.text("index");
      out_.none();
      end_object();
      write_place(object.place);
    }
    out_.end_dict();
    end_object();
    return out_.finish();
  }

 private:
  // Fields follow, each a name and a value.
  void begin_object(std::string_view module, std::string_view name) {
    out_.global(module, name);
    out_.empty_tuple();
    out_.new_object();
    out_.begin_dict();
  }
  void end_object() {
    out_.end_dict();
    out_.build();
  }

  static Shape begin_of(const Box& box) {
    Shape begin;
    for (int d = 0; d < box.extent.dims(); ++d) begin.append(box.begin[static_cast<std::size_t>(d)]);
    return begin;
  }

  void write_size(const Shape& shape) {
    const auto dims = static_cast<std::size_t>(shape.dims());
    out_.global("torch", "Size");
    out_.begin_tuple(1);
    out_.begin_tuple(dims);
    for (int d = 0; d < shape.dims(); ++d) out_.integer(shape[d]);
    out_.end_tuple(dims);
    out_.end_tuple(1);
    out_.reduce();
  }

  // dtype, layout, requires_grad, memory format, pin_memory: PyTorch before 2.15 takes these five and no more.
  void write_properties(StoredType type) {
    const std::optional<TorchTypeNames> names = torch_names_of(type);
    WEFT_CHECK(names, "PyTorch has no type {}", name_of(type));
    out_.global(metadata_module, "TensorProperties");
    out_.empty_tuple();
    out_.new_object();
    out_.begin_tuple(5);
    out_.global("torch", names->dtype);
    out_.global("torch.serialization", "_get_layout");
    out_.begin_tuple(1);
    out_.text("torch.strided");
    out_.end_tuple(1);
    out_.reduce();
    out_.boolean(false);
    out_.global(metadata_module, "_MEM_FORMAT_ENCODING");
    out_.begin_tuple(1);
    out_.integer(0);
    out_.end_tuple(1);
    out_.reduce();
    out_.boolean(false);
    out_.end_tuple(5);
    out_.build();
  }

  void write_tensor(const ShardedTensor& tensor) {
    out_.text(tensor.name);
    begin_object(metadata_module, "TensorStorageMetadata");
    out_.text("properties");
    write_properties(tensor.type);
    out_.text("size");
    write_size(tensor.shape);
    out_.text("chunks");
    out_.begin_list();
    for (const TensorChunk& chunk : tensor.chunks) {
      begin_object(metadata_module, "ChunkStorageMetadata");
      out_.text("offsets");
      write_size(begin_of(chunk.box));
      out_.text("sizes");
      write_size(chunk.box.extent);
      end_object();
    }
    out_.end_list();
    end_object();
  }

  void write_place(const StoragePlace& place) {
    begin_object(filesystem_module, "_StorageInfo");
    out_.text("relative_path");
    out_.text(metadata_.files[place.file]);
    out_.text("offset");
    out_.integer(static_cast<std::int64_t>(place.offset));
    out_.text("length");
    out_.integer(static_cast<std::int64_t>(place.length));
    end_object();
  }

  const DcpMetadata& metadata_;
  PickleWriter out_;
};

}  // namespace

std::string pickle_of(const DcpMetadata& metadata) { return MetadataWriter(metadata).write(); }

}  // namespace weft
