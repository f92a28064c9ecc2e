// --pipeline-model-parallel-layout: which stage holds what. "Et*3|(tt|)*29,m|L":
//
//   E embedding   t layer   m all MTP depths   L final norm, head and loss   | next stage
//
// x*n and (...)*n repeat; commas mean nothing. Stage i is virtual stage i / PP of pipeline rank i mod PP.
#pragma once

#include <string_view>
#include <vector>

namespace weft {

// Layers of every stage. UserError with a caret for what the text cannot mean: an embedding elsewhere than at the beginning,
// a loss elsewhere than at the end, MTP anywhere but on the stage of the loss. mtp: whether the model has it.
std::vector<int> layers_of_stages(std::string_view text, bool mtp);

}  // namespace weft
