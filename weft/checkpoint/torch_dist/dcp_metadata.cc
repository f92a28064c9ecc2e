#include "weft/checkpoint/torch_dist/dcp_metadata.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>

#include "weft/base/error.h"
#include "weft/checkpoint/tiling.h"
#include "weft/checkpoint/torch_dist/pickle.h"
#include "weft/checkpoint/torch_dist/shown.h"
#include "weft/checkpoint/torch_dist/torch_item.h"

namespace weft {
namespace {

constexpr std::size_t max_name = 1024, max_file_name = 255;
// The fewest bytes that describe a chunk or a place. Values may be shared in a pickle, so a small one could else describe
// more of them than fit in memory.
constexpr std::size_t least_bytes = 16;
constexpr std::size_t max_fields = 64;  // of an object: there are five at most; a longer list is not searched

// What storage_data has for one item. Objects have no offsets.
struct Item {
  std::string_view name;
  int dims = -1;  // -1: no offsets
  std::array<std::int64_t, Shape::max_dims> offsets{};
  StoragePlace place;

  auto key() const { return std::tie(name, dims, offsets); }
};

class MetadataReader {
 public:
  MetadataReader(std::span<const std::byte> bytes, const std::string& file)
      : file_(file), most_(bytes.size() / least_bytes), pickle_(bytes, file) {}

  DcpMetadata read() {
    const PickleValue& root = pickle_.root();
    if (!is_object_of(root, "torch.distributed.checkpoint.metadata", "Metadata")) {
      throw UserError("{}: must be the Metadata of a distributed checkpoint, is {}", file_, describe(root));
    }
    read_places(field(root, "storage_data", file_));
    read_entries(field(root, "state_dict_metadata", file_));
    return std::move(result_);
  }

 private:
  const PickleValue* find(const PickleValue& object, std::string_view name, const std::string& where) const {
    const auto* entries = object.is(PickleKind::object) ? entries_of(object.object().state) : nullptr;
    if (entries == nullptr || entries->size() > 2 * max_fields) {
      throw UserError("{}: damaged: {} does not have its fields", where, describe(object));
    }
    return find_entry(object, name);
  }

  const PickleValue& field(const PickleValue& object, std::string_view name, const std::string& where) const {
    if (const PickleValue* value = find(object, name, where)) return *value;
    throw UserError("{}: damaged: {} has no field {}", where, describe(object), shown(name));
  }

  const std::vector<PickleValue>& dict(const PickleValue& value, std::string_view what) const {
    const std::vector<PickleValue>* entries = entries_of(value);
    if (entries == nullptr) throw UserError("{}: damaged: {} must be a dict, is {}", file_, what, describe(value));
    if (entries->size() / 2 > most_) {
      throw UserError("{}: damaged: {} has {} entries, more than the file can describe", file_, what,
                      entries->size() / 2);
    }
    return *entries;
  }

  std::string_view name(const PickleValue& value) const {
    if (!value.is(PickleKind::text) || value.text().empty() || value.text().size() > max_name) {
      throw UserError("{}: damaged: the name of a tensor is {}", file_, describe(value));
    }
    return value.text();
  }

  static std::uint64_t number(const PickleValue& value, std::string_view what, const std::string& where) {
    if (!value.is(PickleKind::integer) || value.integer() < 0) {
      throw UserError("{}: damaged: {} is {}", where, what, describe(value));
    }
    return static_cast<std::uint64_t>(value.integer());
  }

  std::size_t file_number(const PickleValue& path, const std::string& where) {
    // Files lie in the checkpoint's folder: a path elsewhere would read files that are not of the checkpoint.
    const std::string_view text = path.is(PickleKind::text) ? path.text() : "";
    if (text.empty() || text.size() > max_file_name || text.find('/') != std::string_view::npos || text == "." ||
        text == ".." || text.find('\0') != std::string_view::npos) {
      throw UserError("{}: its storage file {} is not the name of a file in the same folder", where, describe(path));
    }
    const auto [at, added] = files_.try_emplace(text, result_.files.size());
    if (added) result_.files.emplace_back(text);
    return at->second;
  }

  void read_places(const PickleValue& storage_data) {
    const std::vector<PickleValue>& entries = dict(storage_data, "storage_data");
    items_.reserve(entries.size() / 2);
    for (std::size_t i = 0; i < entries.size(); i += 2) {
      const PickleValue &index = entries[i], &info = entries[i + 1];
      Item item;
      item.name = name(field(index, "fqn", file_));
      const std::string where = fmt::format("{}: {}", file_, shown(item.name));
      // Absent or None for objects.
      if (const PickleValue* offset = find(index, "offset", where);
          offset != nullptr && !offset->is(PickleKind::none)) {
        const Shape offsets = shape_of(*offset, where, "a chunk's offset");
        item.dims = offsets.dims();
        for (int d = 0; d < item.dims; ++d) item.offsets[static_cast<std::size_t>(d)] = offsets[d];
      }
      item.place.file = file_number(field(info, "relative_path", where), where);
      item.place.offset = number(field(info, "offset", where), "its offset in the storage file", where);
      item.place.length = number(field(info, "length", where), "its length in the storage file", where);
      const PickleValue* transforms = find(info, "transform_descriptors", where);
      if (transforms != nullptr && !transforms->is(PickleKind::none) &&
          !(transforms->is(PickleKind::list) && transforms->items().empty())) {
        throw UserError(
            "{}: is stored compressed or transformed by an extension of PyTorch's writer, which Weft does "
            "not read; save the checkpoint without",
            where);
      }
      items_.push_back(item);
    }
    std::sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) { return a.key() < b.key(); });
    const auto twice = std::adjacent_find(items_.begin(), items_.end(),
                                          [](const Item& a, const Item& b) { return a.key() == b.key(); });
    if (twice != items_.end())
      throw UserError("{}: damaged: {} has two places for one chunk", file_, shown(twice->name));
  }

  const StoragePlace& place_of(const Item& wanted, const std::string& where) const {
    const auto at = std::lower_bound(items_.begin(), items_.end(), wanted,
                                     [](const Item& a, const Item& b) { return a.key() < b.key(); });
    if (at == items_.end() || at->key() != wanted.key()) {
      throw UserError("{}: damaged: storage_data does not say where {} lies", where,
                      wanted.dims < 0 ? "it" : "one of its chunks");
    }
    return at->place;
  }

  void read_entries(const PickleValue& state_dict) {
    const std::vector<PickleValue>& entries = dict(state_dict, "state_dict_metadata");
    std::vector<std::pair<std::string_view, const PickleValue*>> sorted;
    sorted.reserve(entries.size() / 2);
    for (std::size_t i = 0; i < entries.size(); i += 2) sorted.emplace_back(name(entries[i]), &entries[i + 1]);
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      const auto& [key, value] = sorted[i];
      if (i > 0 && sorted[i - 1].first == key) throw UserError("{}: damaged: describes {} twice", file_, shown(key));
      if (is_object_of(*value, "torch.distributed.checkpoint.metadata", "TensorStorageMetadata")) {
        read_tensor(key, *value);
      } else if (is_object_of(*value, "torch.distributed.checkpoint.metadata", "BytesStorageMetadata")) {
        Item wanted;
        wanted.name = key;
        const std::string where = fmt::format("{}: object {}", file_, shown(key));
        result_.objects.push_back({std::string(key), place_of(wanted, where)});
      } else {
        throw UserError("{}: {} is described by {}", file_, shown(key), describe(*value));
      }
    }
  }

  StoredType type_of(const PickleValue& properties, const std::string& where) const {
    // Pickled as a tuple: dtype, layout, requires_grad, memory format, pin_memory, and from torch 2.15 on strides.
    const PickleValue none;
    const PickleValue& state = properties.is(PickleKind::object) ? properties.object().state : none;
    if (!state.is(PickleKind::tuple) || state.items().size() < 5 || !state.items()[0].is(PickleKind::global)) {
      throw UserError("{}: damaged: its properties are {}", where, describe(properties));
    }
    const std::optional<StoredType> type = stored_type_of(state.items()[0].global());
    if (!type) throw UserError("{}: has dtype {}, which Weft does not read", where, describe(state.items()[0]));
    const PickleValue& layout = state.items()[1];
    if (is_object_of(layout, "torch.serialization", "_get_layout")) {
      const std::vector<PickleValue>& named = layout.object().arguments.items();
      if (named.size() != 1 || !named[0].is(PickleKind::text) || named[0].text() != "torch.strided") {
        throw UserError("{}: has layout {}; Weft reads dense tensors", where, named.empty() ? "?" : describe(named[0]));
      }
    }
    return *type;
  }

  void read_tensor(std::string_view key, const PickleValue& value) {
    const std::string where = fmt::format("{}: tensor {}", file_, shown(key));
    ShardedTensor tensor;
    tensor.name = key;
    tensor.type = type_of(field(value, "properties", where), where);
    tensor.shape = shape_of(field(value, "size", where), where, "its size");
    if (!bytes_of(tensor.shape, tensor.type)) {
      throw UserError("{}: its shape {} is too large to be true", where, to_text(tensor.shape));
    }
    const PickleValue& chunks = field(value, "chunks", where);
    if (!chunks.is(PickleKind::list)) throw UserError("{}: damaged: its chunks are {}", where, describe(chunks));
    if (chunks.items().size() > most_ - result_.chunks) {
      throw UserError("{}: damaged: has {} chunks, more than the file can describe", where, chunks.items().size());
    }
    for (const PickleValue& chunk : chunks.items()) read_chunk(chunk, tensor, where);
    std::sort(tensor.chunks.begin(), tensor.chunks.end(),
              [](const TensorChunk& a, const TensorChunk& b) { return a.box.begin < b.box.begin; });
    std::vector<const Box*> boxes;
    for (const TensorChunk& chunk : tensor.chunks) boxes.push_back(&chunk.box);
    check_tiling(tensor.shape, std::move(boxes), where, "chunks");
    tensor.first_chunk = result_.chunks;
    result_.chunks += tensor.chunks.size();
    result_.tensors.push_back(std::move(tensor));
  }

  void read_chunk(const PickleValue& value, ShardedTensor& tensor, const std::string& where) const {
    const Shape offsets = shape_of(field(value, "offsets", where), where, "a chunk's offset");
    TensorChunk chunk;
    chunk.box.extent = shape_of(field(value, "sizes", where), where, "a chunk's size");
    bool fits = offsets.dims() == tensor.shape.dims() && chunk.box.extent.dims() == tensor.shape.dims();
    for (int d = 0; fits && d < offsets.dims(); ++d) {
      chunk.box.begin[static_cast<std::size_t>(d)] = offsets[d];
      fits = offsets[d] <= tensor.shape[d] && chunk.box.extent[d] <= tensor.shape[d] - offsets[d];
    }
    if (!fits) {
      throw UserError("{}: damaged: a chunk {} from {} on does not lie in its shape {}", where,
                      to_text(chunk.box.extent), to_text(offsets), to_text(tensor.shape));
    }
    if (chunk.box.extent.elements() == 0) return;
    Item wanted;
    wanted.name = tensor.name;
    wanted.dims = offsets.dims();
    wanted.offsets = chunk.box.begin;
    chunk.place = place_of(wanted, where);
    tensor.chunks.push_back(chunk);
  }

  const std::string& file_;
  std::size_t most_;  // chunks, or entries of a dict, that the file can describe
  Pickle pickle_;
  DcpMetadata result_;
  std::map<std::string_view, std::size_t> files_;
  std::vector<Item> items_;  // by key
};

}  // namespace

DcpMetadata parse_dcp_metadata(std::span<const std::byte> bytes, const std::string& file) {
  return MetadataReader(bytes, file).read();
}

}  // namespace weft
