// Damaged inputs for readers: whatever bytes change, a reader either reads or throws a UserError that begins with "x: ", in
// time and memory that the size of the input bounds. WEFT_MUTATIONS sets how many are tried (1000000 for a long run).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weft/base/random.h"

namespace weft {

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : key_(random_key(seed, "mutations")) {}
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_below(key_, next_++, bound); }

 private:
  std::uint64_t key_, next_ = 0;
};

// Changes one place: cuts, overwrites, flips, erases, inserts, or writes one of the tokens, which are what the format's
// parser reacts to.
void mutate_once(std::string& bytes, Draws& draw, const std::vector<std::string>& tokens);

struct MutatedInput {
  const char* name;
  std::string bytes;
  std::function<void(const std::string&)> read;
  bool costly = false;                                    // gets a few mutations only
  std::function<void(std::string&, Draws&)> mutate = {};  // absent: mutate_once, one to four times
};
struct MemoryBound {
  std::size_t per_byte = 0, fixed = 0;
};
void try_mutations(const std::vector<MutatedInput>& inputs, const std::vector<std::string>& tokens,
                   const MemoryBound& bound, std::int64_t usual_count);

}  // namespace weft
