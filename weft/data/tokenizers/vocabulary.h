// The texts of tokens, one after another in memory, and a table from text to id.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

inline constexpr std::int32_t no_token = -1;
// Merges that are found by cutting a token at every place take time that grows with the square of its length.
inline constexpr std::size_t longest_cut_token = 1024;  // bytes

// A hash of a few bytes that spreads over all 64 bits.
std::uint64_t hash_of_bytes(std::string_view bytes);

class Vocabulary {
 public:
  struct Entry {
    std::string_view text;
    std::int32_t id;
    bool findable = true;  // false: the id has this text, but the text does not lead to the id
  };
  Vocabulary() = default;
  // Ids may have gaps, which have the empty text. UserError "WHERE: ..." for a negative id, for one far above the number of
  // entries, and for one that is used twice. Of equal texts the last counts.
  Vocabulary(const std::vector<Entry>& entries, const std::string& where);

  std::int64_t size() const { return static_cast<std::int64_t>(begin_.size()) - 1; }  // the highest id + 1
  std::string_view text(std::int32_t id) const {
    const auto i = static_cast<std::size_t>(id);
    return std::string_view(bytes_).substr(begin_[i], begin_[i + 1] - begin_[i]);
  }
  bool has(std::int32_t id) const { return id >= 0 && id < size() && used_[static_cast<std::size_t>(id)]; }
  bool findable(std::int32_t id) const { return findable_[static_cast<std::size_t>(id)]; }
  std::int32_t find(std::string_view text) const;  // no_token

 private:
  std::string bytes_;
  std::vector<std::uint64_t> begin_ = {0};  // of a text in bytes_; one more at the end
  std::vector<bool> used_, findable_;
  std::vector<std::int32_t> slots_;  // ids by hash, a power of two of them
};

}  // namespace weft
