#include "weft/grid/axes.h"

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {

std::vector<Axis> parse_axes(std::string_view text) {
  std::vector<Axis> axes;
  std::size_t begin = 0;
  const auto fail = [&](std::size_t position, std::string_view rule) {
    throw UserError("bad axes: {}\n{}", rule, point_at(text, position));
  };
  for (const std::string& part : split(text, ',')) {
    const std::size_t equal = part.find('=');
    if (equal == std::string::npos) fail(begin + part.size(), "write each axis as name=size, as in tp=2,dp=4");
    if (equal == 0) fail(begin, "an axis needs a name before '='");
    std::int64_t size = 0;
    if (!parse_int(std::string_view(part).substr(equal + 1), size) || size != static_cast<int>(size))
      fail(begin + equal + 1, fmt::format("the size of axis '{}' must be a whole number", part.substr(0, equal)));
    axes.push_back({part.substr(0, equal), static_cast<int>(size)});
    begin += part.size() + 1;
  }
  return axes;
}

}  // namespace weft
