// The plots of the stories. A part of a plot is a list of lines; each line is one of its alternatives, whose {names}
// are replaced by what the story is about (stories.cc). A capital {He} is {he} at the beginning of a sentence.
//
// A story is an opening, the beginning of a plot, an episode that has nothing to do with it, and the end of the plot:
// the end can only be told by a reader who remembers the beginning.
#pragma once

#include <string_view>
#include <vector>

namespace weft::story {

using Line = std::vector<std::string_view>;
using Lines = std::vector<Line>;
struct Plot {
  Lines beginning, end;
};

Lines opening();
Lines closing();
std::vector<Plot> plots();
std::vector<Lines> episodes();

}  // namespace weft::story
