#include "weft/data/tokenizers/precompiled_rules.h"

#include <cstring>

#include "weft/base/error.h"
#include "weft/data/tokenizers/utf8.h"

namespace weft {

namespace {

// The parts of a unit: the byte that leads to it (a unit that holds a value has none), where its children are, whether it
// has a value.
std::uint32_t label(std::uint32_t unit) { return unit & 0x800000ffu; }
std::uint32_t offset(std::uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }
bool has_value(std::uint32_t unit) { return (unit & 0x100u) != 0; }
std::uint32_t value(std::uint32_t unit) { return unit & 0x7fffffffu; }

}  // namespace

PrecompiledRules::PrecompiledRules(std::string_view bytes, const std::string& where) {
  if (bytes.empty()) return;
  std::uint32_t size = 0;
  if (bytes.size() >= sizeof(size)) std::memcpy(&size, bytes.data(), sizeof(size));
  if (size == 0 || size % 4 != 0 || size > bytes.size() - sizeof(size))
    throw UserError("{}: the rules of normalisation have {} bytes, which do not hold a tree of {}", where, bytes.size(),
                    size);
  units_.resize(size / 4);
  std::memcpy(units_.data(), bytes.data() + sizeof(size), size);
  replacements_ = bytes.substr(sizeof(size) + size);
  if (first_invalid_utf8(replacements_) != std::string::npos)
    throw UserError("{}: a rule of normalisation replaces by what is not UTF-8", where);
}

PrecompiledRules::Found PrecompiledRules::longest(std::string_view text) const {
  Found found;
  if (units_.empty()) return found;
  std::size_t node = offset(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (node >= units_.size() || label(units_[node]) != byte) break;
    const std::uint32_t unit = units_[node];
    node ^= offset(unit);
    if (!has_value(unit)) continue;
    if (node >= units_.size()) break;
    const std::size_t begin = value(units_[node]);
    // A rule applies to whole characters.
    const bool whole = i + 1 == text.size() || (static_cast<unsigned char>(text[i + 1]) & 0xc0) != 0x80;
    if (begin > replacements_.size() || !whole) continue;
    if (begin < replacements_.size() && (static_cast<unsigned char>(replacements_[begin]) & 0xc0) == 0x80) continue;
    const std::size_t end = std::min(replacements_.find('\0', begin), replacements_.size());
    found = {i + 1, std::string_view(replacements_).substr(begin, end - begin)};
  }
  return found;
}

}  // namespace weft
