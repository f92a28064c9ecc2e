#include "weft/model/content.h"

namespace weft {

std::string_view name_of(Content content) {
  switch (content) {
    case Content::weight:
      return "weight";
    case Content::first_moment:
      return "first_moment";
    case Content::second_moment:
      return "second_moment";
    case Content::gradient:
      return "gradient";
  }
  return "";
}

}  // namespace weft
