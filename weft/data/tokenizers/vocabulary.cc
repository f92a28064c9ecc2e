#include "weft/data/tokenizers/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "weft/base/error.h"

namespace weft {

namespace {

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  __extension__ using Product = unsigned __int128;
  const Product product = static_cast<Product>(a ^ 0x9e3779b97f4a7c15u) * (b ^ 0xd1b54a32d192ed03u);
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t load(const char* from, std::size_t bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, bytes);
  return value;
}

}  // namespace

std::uint64_t hash_of_bytes(std::string_view bytes) {
  const char* at = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t hash = left;
  for (; left > 16; left -= 16, at += 16) hash = mixed(load(at, 8) ^ hash, load(at + 8, 8));
  if (left >= 8) return mixed(load(at, 8) ^ hash, load(at + left - 8, 8));
  if (left >= 4) return mixed(load(at, 4) ^ hash, load(at + left - 4, 4));
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < left; ++i) last = last << 8 | static_cast<unsigned char>(at[i]);
  return mixed(last ^ hash << 32, hash);
}

Vocabulary::Vocabulary(const std::vector<Entry>& entries, const std::string& where) {
  std::int64_t size = 0;
  for (const Entry& entry : entries) {
    if (entry.id < 0) throw UserError("{}: token \"{}\" has the id {}, below 0", where, entry.text, entry.id);
    size = std::max<std::int64_t>(size, std::int64_t{entry.id} + 1);
  }
  const auto count = static_cast<std::int64_t>(entries.size());
  if (size > 2 * count + 65536)
    throw UserError("{}: the highest id is {}, but there are only {} tokens", where, size - 1, count);
  std::vector<const Entry*> by_id(static_cast<std::size_t>(size));
  for (const Entry& entry : entries) {
    const Entry*& place = by_id[static_cast<std::size_t>(entry.id)];
    if (place)
      throw UserError("{}: the tokens \"{}\" and \"{}\" have the same id, {}", where, place->text, entry.text,
                      entry.id);
    place = &entry;
  }
  begin_.reserve(by_id.size() + 1);
  used_.resize(by_id.size());
  findable_.resize(by_id.size());
  for (std::size_t id = 0; id < by_id.size(); ++id) {
    if (by_id[id]) {
      bytes_ += by_id[id]->text;
      used_[id] = true;
      findable_[id] = by_id[id]->findable;
    }
    begin_.push_back(bytes_.size());
  }
  slots_.assign(std::bit_ceil(static_cast<std::size_t>(2 * count + 2)), no_token);
  const std::size_t mask = slots_.size() - 1;
  for (std::int32_t id = 0; id < size; ++id) {
    if (!findable(id)) continue;
    std::size_t slot = hash_of_bytes(text(id)) & mask;
    while (slots_[slot] != no_token && text(slots_[slot]) != text(id)) slot = (slot + 1) & mask;
    slots_[slot] = id;
  }
}

std::int32_t Vocabulary::find(std::string_view wanted) const {
  if (slots_.empty()) return no_token;
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t slot = hash_of_bytes(wanted) & mask;; slot = (slot + 1) & mask) {
    const std::int32_t id = slots_[slot];
    if (id == no_token || text(id) == wanted) return id;
  }
}

}  // namespace weft
