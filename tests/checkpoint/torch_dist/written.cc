#include "tests/checkpoint/torch_dist/written.h"

#include <cstring>

#include "weft/checkpoint/torch_dist/crc32.h"

namespace weft::written {
namespace {

const std::string dcp = "torch.distributed.checkpoint.metadata";

std::int64_t product(const std::vector<std::int64_t>& extents) {
  std::int64_t result = 1;
  for (const std::int64_t extent : extents) result *= extent;
  return result;
}

}  // namespace

std::string little(std::uint64_t value, int bytes) {
  std::string result;
  for (int i = 0; i < bytes; ++i) result += static_cast<char>(value >> (8 * i));
  return result;
}

std::string text(const std::string& value) { return "X" + little(value.size(), 4) + value; }
std::string integer(std::int64_t value) { return "\x8a\x08" + little(static_cast<std::uint64_t>(value), 8); }

std::string tuple(const std::vector<std::string>& items) {
  std::string result = "(";
  for (const std::string& item : items) result += item;
  return result + "t";
}

std::string size(const std::vector<std::int64_t>& extents) {
  std::vector<std::string> items;
  for (const std::int64_t extent : extents) items.push_back(integer(extent));
  return call(global("torch", "Size"), tuple({tuple(items)}));
}

std::string list(const std::vector<std::string>& items) {
  std::string result = "](";
  for (const std::string& item : items) result += item;
  return result + "e";
}

std::string dict(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string result = "}(";
  for (const auto& [key, value] : entries) result += key + value;
  return result + "u";
}

std::string fields(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string result = "}(";
  for (const auto& [key, value] : entries) result += text(key) + value;
  return result + "u";
}

std::string global(const std::string& module, const std::string& name) { return "c" + module + "\n" + name + "\n"; }
std::string call(const std::string& callee, const std::string& arguments) { return callee + arguments + "R"; }
std::string object(const std::string& callee, const std::string& state) { return callee + ")\x81" + state + "b"; }
std::string pickle(const std::string& value, int protocol) {
  return std::string("\x80") + static_cast<char>(protocol) + value + ".";
}

std::string zip(const std::vector<Entry>& entries, bool zip64) {
  std::string result, directory;
  for (const Entry& entry : entries) {
    const std::size_t header = result.size();
    std::string padding((64 - (header + 30 + entry.name.size() + 4) % 64) % 64, 'Z');
    padding = "FB" + little(padding.size(), 2) + padding;
    result += "PK\x03\x04" + little(0, 2) + little(8, 2) + little(0, 18);  // bit 3: sizes are in the directory
    result += little(entry.name.size(), 2) + little(padding.size(), 2) + entry.name + padding + entry.bytes;
    directory += "PK\x01\x02" + little(0, 4) + little(8, 2) + little(0, 6);
    directory +=
        little(crc32(bytes_of(entry.bytes)), 4) + little(entry.bytes.size(), 4) + little(entry.bytes.size(), 4);
    directory += little(entry.name.size(), 2) + little(0, 12) + little(header, 4) + entry.name;
  }
  const std::size_t begin = result.size(), end = begin + directory.size();
  result += directory;
  if (zip64) {
    result += "PK\x06\x06" + little(44, 8) + little(0, 12) + little(entries.size(), 8) + little(entries.size(), 8);
    result += little(directory.size(), 8) + little(begin, 8);
    result += "PK\x06\x07" + little(0, 4) + little(end, 8) + little(1, 4);
  }
  return result + "PK\x05\x06" + little(0, 4) + little(entries.size(), 2) + little(entries.size(), 2) +
         little(directory.size(), 4) + little(begin, 4) + little(0, 2);
}

std::string tensor_pickle(const TensorItem& item) {
  std::vector<std::string> extents, strides;
  std::vector<std::int64_t> steps = item.strides;
  for (std::size_t i = item.shape.size(); steps.size() < item.shape.size(); --i)
    steps.insert(steps.begin(), i == item.shape.size() ? 1 : steps[0] * item.shape[i]);
  for (const std::int64_t extent : item.shape) extents.push_back(integer(extent));
  for (const std::int64_t step : steps) strides.push_back(integer(step));
  const std::string id = tuple({text("storage"), global("torch", item.storage), text("0"), text("cpu"), integer(0)});
  return call(global("torch._utils", "_rebuild_tensor_v2"),
              tuple({id + "Q", integer(item.offset), tuple(extents), tuple(strides), no,
                     call(global("collections", "OrderedDict"), no_arguments)}));
}

std::string saved_tensor(const TensorItem& item) {
  return zip({{"archive/data.pkl", pickle(tensor_pickle(item))},
              {"archive/byteorder", "little"},
              {"archive/data/0", item.data},
              {"archive/version", "3\n"}});
}

std::string storage_index(const std::string& name, const std::vector<std::int64_t>& offset) {
  return object(global(dcp, "MetadataIndex"), fields({{"fqn", text(name)}, {"offset", size(offset)}, {"index", none}}));
}

std::string storage_info(const std::string& file, std::int64_t offset, std::int64_t length) {
  return object(global("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
                fields({{"relative_path", text(file)}, {"offset", integer(offset)}, {"length", integer(length)}}));
}

void Checkpoint::lay_out() {
  const auto place = [&](const std::string& index, const std::string& file, const std::string& item) {
    storage.emplace_back(
        index, storage_info(file, static_cast<std::int64_t>(data.size()), static_cast<std::int64_t>(item.size())));
    data += item;
  };
  for (Tensor& tensor : tensors) {
    std::vector<std::string> chunks;
    for (Chunk& chunk : tensor.chunks) {
      if (chunk.item.empty()) {
        TensorItem item;
        item.shape = chunk.size;
        for (std::int64_t i = 0; i < product(chunk.size); ++i) {
          const auto value = static_cast<float>(i);
          item.data.append(reinterpret_cast<const char*>(&value), sizeof value);
        }
        chunk.item = saved_tensor(item);
      }
      place(storage_index(tensor.name, chunk.offset), chunk.file, chunk.item);
      chunks.push_back(object(global(dcp, "ChunkStorageMetadata"),
                              fields({{"offsets", size(chunk.offset)}, {"sizes", size(chunk.size)}})));
    }
    // Five fields, as before torch 2.15; the golden ones have six.
    const std::string layout = call(global("torch.serialization", "_get_layout"), tuple({text(tensor.layout)}));
    const std::string format = call(global(dcp, "_MEM_FORMAT_ENCODING"), tuple({integer(0)}));
    const std::string properties =
        object(global(dcp, "TensorProperties"), tuple({global("torch", tensor.dtype), layout, no, format, no}));
    state_dict.emplace_back(
        text(tensor.name),
        object(global(dcp, "TensorStorageMetadata"),
               fields({{"properties", properties}, {"size", size(tensor.shape)}, {"chunks", list(chunks)}})));
  }
  for (const auto& [name, item] : objects) {
    state_dict.emplace_back(text(name), global(dcp, "BytesStorageMetadata") + ")\x81");
    place(object(global(dcp, "MetadataIndex"), fields({{"fqn", text(name)}, {"index", none}})), "__0_0.distcp", item);
  }
}

std::string Checkpoint::metadata() const {
  return pickle(
      object(
          global(dcp, "Metadata"),
          fields({{"state_dict_metadata", dict(state_dict)}, {"planner_data", none}, {"storage_data", dict(storage)}})),
      4);
}

void Checkpoint::write(const ModelFolder& folder) const {
  folder.write(".metadata", metadata());
  folder.write("__0_0.distcp", data);
  folder.write("metadata.json", R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})");
}

Checkpoint small_checkpoint() {
  Checkpoint made;
  made.tensors = {{"a", {4, 2}, {{{0, 0}, {1, 2}}, {{1, 0}, {3, 2}}}}, {"b", {3}, {{{0}, {3}}}}};
  const std::string args = object(global("argparse", "Namespace"), fields({{"num_layers", integer(2)}}));
  made.objects = {{"common_state/shard_0_1",
                   zip({{"archive/data.pkl", pickle(list({fields({{"args", args}, {"iteration", integer(7)}})}))}})}};
  made.lay_out();
  return made;
}

}  // namespace weft::written
