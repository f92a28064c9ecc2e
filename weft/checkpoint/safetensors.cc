#include "weft/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {
namespace {

constexpr std::uint64_t max_header_bytes = 100'000'000;

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& file) : file_(file.string()), mapping_(file) {
  const std::span<const std::byte> all = mapping_.bytes();
  if (all.size() < 8) {
    throw UserError("{}: not a safetensors file: {} bytes, and the length of the header alone takes 8", file_,
                    all.size());
  }
  std::uint64_t length = 0;
  std::memcpy(&length, all.data(), 8);
  if (length > max_header_bytes) {
    throw UserError("{}: not a safetensors file, or a damaged one: its header would be {} bytes long, more than {}",
                    file_, length, max_header_bytes);
  }
  if (length > all.size() - 8) {
    throw UserError("{}: truncated: the header is {} bytes long, and the file ends after {} of them", file_, length,
                    all.size() - 8);
  }
  const SafetensorsHeader header =
      parse_safetensors_header({reinterpret_cast<const char*>(all.data()) + 8, length}, file_);
  const std::span<const std::byte> data = all.subspan(8 + length);
  check_safetensors_tiling(header, data.size(), file_);
  metadata_ = header.metadata;
  entries_.reserve(header.tensors.size());
  for (const SafetensorsHeader::Tensor& t : header.tensors) {
    entries_.push_back({t.name, t.type, t.shape, data.subspan(t.begin, t.end - t.begin), file_});
  }
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), name,
                                   [](const TensorEntry& entry, std::string_view n) { return entry.name < n; });
  return at != entries_.end() && at->name == name ? &*at : nullptr;
}

const TensorEntry& SafetensorsFile::at(std::string_view name) const {
  if (const TensorEntry* entry = find(name)) return *entry;
  std::vector<std::string> names;
  for (const TensorEntry& entry : entries_) names.push_back(entry.name);
  const std::string near = nearest_name(name, names);
  throw UserError("{}: has no tensor '{}'{}", file_, name, near.empty() ? "" : fmt::format("; there is '{}'", near));
}

void read_as(const TensorEntry& entry, DType target, void* out) {
  read_range(entry, 0, entry.shape.elements(), target, out);
}

void read_range(const TensorEntry& entry, std::int64_t first, std::int64_t count, DType target, void* out) {
  if (!is_convertible(entry.type, target)) {
    throw UserError("{}: tensor '{}' has dtype {}; {} wanted", entry.file, entry.name, name_of(entry.type),
                    is_float(target) ? "F32, F64, BF16 or F16 is" : "an integer dtype is");
  }
  WEFT_CHECK(first >= 0 && count >= 0 && first + count <= entry.shape.elements(), "elements {} to {} of {} {}", first,
             first + count, entry.name, to_text(entry.shape));
  const std::byte* const from = entry.bytes.data() + first * bits_of(entry.type) / 8;
  if (!convert(entry.type, from, target, out, count)) {
    throw UserError("{}: tensor '{}' ({}) holds a number that does not fit {}", entry.file, entry.name,
                    name_of(entry.type), name_of(target));
  }
}

}  // namespace weft
