#include "weft/model/content.h"

#include <algorithm>

namespace weft {

std::string_view name_of(Content content) {
  switch (content) {
    case Content::weight:
      return "weight";
    case Content::first_moment:
      return "first_moment";
    case Content::second_moment:
      return "second_moment";
    case Content::momentum:
      return "momentum";
    case Content::gradient:
      return "gradient";
  }
  return "";
}

std::string in_words(Content content) {
  std::string words(name_of(content));
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

}  // namespace weft
