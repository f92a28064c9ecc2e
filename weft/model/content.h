// What is kept of a parameter.
#pragma once

#include <cstdint>
#include <string_view>

namespace weft {

enum class Content : std::uint8_t {
  weight,  // what training works with: of a bf16 weight the float that weight and remainder make up (split_float)
  first_moment,
  second_moment,
  gradient,
};
std::string_view name_of(Content content);

}  // namespace weft
