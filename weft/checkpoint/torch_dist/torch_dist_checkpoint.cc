#include "weft/checkpoint/torch_dist/torch_dist_checkpoint.h"

#include <algorithm>
#include <tuple>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/torch_dist/chunk_copy.h"
#include "weft/checkpoint/torch_dist/megatron_folder.h"
#include "weft/checkpoint/torch_dist/pickle_json.h"
#include "weft/checkpoint/torch_dist/shown.h"

namespace weft {
namespace {

constexpr std::string_view shared_state_name = "common_state/shard_0_1";

DcpMetadata read_metadata(const std::filesystem::path& file) {
  const MappedFile mapping(file);
  return parse_dcp_metadata(mapping.bytes(), file.string());
}

// Objects are written as a list of one.
const PickleValue& unwrapped(const PickleValue& value) {
  return value.is(PickleKind::list) && value.items().size() == 1 ? value.items()[0] : value;
}

Json shared_state_of(const TorchItem& item, ChunkChecks checks, const std::string& where) {
  if (checks == ChunkChecks::checksums)
    for (const ZipEntry& entry : item.archive().entries()) check_checksum(entry, where, Pages::keep);
  const PickleValue& state = unwrapped(item.root());
  if (entries_of(state) == nullptr) throw UserError("{}: must hold a dict, holds {}", where, describe(state));
  return to_json(state, item.pickle(), where);
}

}  // namespace

TorchDistCheckpoint::TorchDistCheckpoint(const std::filesystem::path& path, ChunkChecks checks) : checks_(checks) {
  const MegatronFolder found = find_megatron_folder(path);
  folder_ = found.path;
  metadata_ = read_metadata(folder_ / ".metadata");
  mappings_.resize(metadata_.files.size());
  verified_ = std::make_unique<std::atomic<bool>[]>(metadata_.chunks);
  check_places();
  read_shared_state();
  const auto args = shared_state_.find("args");
  args_ = args != shared_state_.end() && args->is_object() ? *args : Json::object();
  iteration_ = found.iteration;
  const auto saved = shared_state_.find("iteration");
  if (saved != shared_state_.end() && saved->is_number_integer()) iteration_ = saved->get<std::int64_t>();
}

void TorchDistCheckpoint::check_places() const {
  struct Item {
    const StoragePlace* place;
    const std::string* name;
  };
  std::vector<Item> items;
  items.reserve(metadata_.chunks + metadata_.objects.size());
  for (const ShardedTensor& tensor : metadata_.tensors)
    for (const TensorChunk& chunk : tensor.chunks) items.push_back({&chunk.place, &tensor.name});
  for (const StoredObject& object : metadata_.objects) items.push_back({&object.place, &object.name});
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::tie(a.place->file, a.place->offset, *a.name) < std::tie(b.place->file, b.place->offset, *b.name);
  });
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const StoragePlace& place = *items[i].place;
    const Item* const before = i > 0 && items[i - 1].place->file == place.file ? &items[i - 1] : nullptr;
    if (before == nullptr) {
      std::error_code error;
      size = std::filesystem::file_size(file_of(place), error);
      if (error) {
        throw UserError("cannot read {}: {}; it holds {}, and the checkpoint is incomplete without it",
                        file_of(place).string(), error.message(), shown(*items[i].name));
      }
    }
    if (place.offset > size || place.length > size - place.offset) {
      throw UserError("{}: truncated, or of another checkpoint: it has {} bytes, and {} is {} bytes from byte {} on",
                      file_of(place).string(), size, shown(*items[i].name), place.length, place.offset);
    }
    // Every length was found to be within its file: no overflow.
    if (before != nullptr && before->place->offset + before->place->length > place.offset) {
      throw UserError("{}: damaged .metadata: {} and {} would lie on the same bytes, at byte {}",
                      file_of(place).string(), shown(*before->name), shown(*items[i].name), place.offset);
    }
  }
}

void TorchDistCheckpoint::read_shared_state() {
  const std::filesystem::path file = folder_ / "common.pt";
  std::error_code error;
  shared_state_ = Json::object();
  if (std::filesystem::exists(file, error)) {
    const MappedFile mapping(file);
    shared_state_ = shared_state_of(TorchItem(mapping.bytes(), file.string()), checks_, file.string());
    return;
  }
  const auto at = std::find_if(metadata_.objects.begin(), metadata_.objects.end(),
                               [](const StoredObject& object) { return object.name == shared_state_name; });
  if (at != metadata_.objects.end()) {
    const std::unique_ptr<TorchItem> item = open(*at);
    shared_state_ = shared_state_of(*item, checks_, item->archive().where());
  }
}

const ShardedTensor* TorchDistCheckpoint::find(std::string_view name) const {
  const auto at = std::lower_bound(tensors().begin(), tensors().end(), name,
                                   [](const ShardedTensor& tensor, std::string_view n) { return tensor.name < n; });
  return at != tensors().end() && at->name == name ? &*at : nullptr;
}

const ShardedTensor& TorchDistCheckpoint::at(std::string_view name) const {
  if (const ShardedTensor* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (const ShardedTensor& tensor : tensors()) names.push_back(tensor.name);
  const std::string near = nearest_name(name, names);
  throw UserError("{}: has no tensor {}{}", folder_.string(), shown(name),
                  near.empty() ? "" : fmt::format("; there is {}", shown(near)));
}

std::span<const std::byte> TorchDistCheckpoint::stored_bytes(const StoragePlace& place) const {
  const std::lock_guard lock(mapping_mutex_);
  std::unique_ptr<MappedFile>& mapping = mappings_[place.file];
  if (mapping == nullptr) mapping = std::make_unique<MappedFile>(file_of(place));
  const std::span<const std::byte> bytes = mapping->bytes();
  if (place.offset > bytes.size() || place.length > bytes.size() - place.offset) {
    throw UserError("{}: has become shorter since the checkpoint was opened", file_of(place).string());
  }
  return bytes.subspan(place.offset, place.length);
}

void TorchDistCheckpoint::read(const ShardedTensor& tensor, const Box& box, std::span<std::byte> out) const {
  const int dims = tensor.shape.dims();
  WEFT_CHECK(box.extent.dims() == dims, "a box {} of a tensor {}", to_text(box.extent), to_text(tensor.shape));
  for (int d = 0; d < dims; ++d) {
    const std::int64_t begin = box.begin[static_cast<std::size_t>(d)];
    WEFT_CHECK(begin >= 0 && box.extent[d] >= 0 && begin + box.extent[d] <= tensor.shape[d],
               "a box {} from {} on in dim {} of a tensor {}", to_text(box.extent), begin, d, to_text(tensor.shape));
  }
  const std::int64_t bytes = box.extent.elements() * bits_of(tensor.type) / 8;
  WEFT_CHECK(static_cast<std::int64_t>(out.size()) == bytes, "{} bytes for a box of {}", out.size(), bytes);
  for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
    const Box& chunk = tensor.chunks[c].box;
    // They are sorted by their first element.
    if (dims > 0 && chunk.begin[0] >= box.begin[0] + box.extent[0]) break;
    if (intersection(chunk, box)) read_chunk(tensor, c, box, out.data());
  }
}

void TorchDistCheckpoint::read_chunk(const ShardedTensor& tensor, std::size_t chunk, const Box& box,
                                     std::byte* out) const {
  const StoragePlace& place = tensor.chunks[chunk].place;
  const Box& part = tensor.chunks[chunk].box;
  const std::string where = fmt::format("{}: tensor {}, {} bytes from byte {} on", file_of(place).string(),
                                        shown(tensor.name), place.length, place.offset);
  const TorchItem item(stored_bytes(place), where);
  const SavedTensor saved = item.tensor(item.root());
  if (saved.type != tensor.type || saved.shape != part.extent) {
    throw UserError("{}: holds {} {}, and .metadata says {} {}", where, name_of(saved.type), to_text(saved.shape),
                    name_of(tensor.type), to_text(part.extent));
  }
  std::atomic<bool>& verified = verified_[tensor.first_chunk + chunk];
  if (checks_ == ChunkChecks::checksums && !verified.load(std::memory_order_relaxed)) {
    check_checksum(*saved.storage, where, Pages::give_back);
    verified.store(true, std::memory_order_relaxed);
  }
  copy_shared(saved, part, box, out, Pages::give_back);
}

std::unique_ptr<TorchItem> TorchDistCheckpoint::open(const StoredObject& object) const {
  const std::string where = fmt::format("{}: object {}, {} bytes from byte {} on", file_of(object.place).string(),
                                        shown(object.name), object.place.length, object.place.offset);
  return std::make_unique<TorchItem>(stored_bytes(object.place), where);
}

}  // namespace weft
