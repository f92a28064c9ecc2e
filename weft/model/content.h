// What is kept of a parameter.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

enum class Content : std::uint8_t {
  weight,        // what training works with: of a bf16 weight the float that weight and remainder make up (split_float)
  first_moment,  // of Adam
  second_moment,
  momentum,  // of SGD
  gradient,
};
std::string_view name_of(Content content);
std::string in_words(Content content);  // "first moment"

// What an optimizer may keep of a parameter; each keeps some of it, or nothing (states_of in weft/optim/optimizer.h).
inline constexpr Content optimizer_states[] = {Content::first_moment, Content::second_moment, Content::momentum};

}  // namespace weft
