// The demo's text: short children's stories, made by rules from a few hundred words. There is something to learn at
// every level: spelling; grammar (a and an, singular and plural, he and she by name); which sound an animal makes; who
// holds a thing at the end of the story, and where it was hidden; small sums that come out right.
//
// Plain ASCII, 300 to 600 bytes per story, each followed by a blank line. The same seed gives the same text on every
// platform, and a longer text begins with the shorter one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace weft {

// Story `number` of a seed, with its closing blank line.
std::string write_story(std::uint64_t seed, std::uint64_t number);

// Whole stories from number 0 on, as many as it takes to reach at least `bytes`.
std::string write_stories(std::uint64_t seed, std::size_t bytes);

}  // namespace weft
