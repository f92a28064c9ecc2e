// The plots of the stories. A part of a plot is a list of lines; each line is one of its alternatives, whose {names}
// are replaced by what the story is about (stories.cc). A capital {He} is {he} at the beginning of a sentence.
//
// A story is an opening, the beginning of a plot, an unrelated episode, and the end of the plot, which only a reader who
// remembers the beginning can predict.
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
