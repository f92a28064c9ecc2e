// What a step computes again in its backward pass instead of keeping it from the forward pass.
#pragma once

#include <cstdint>

#include "weft/model/module.h"

namespace weft {

struct Recomputation {
  enum class Kind : std::uint8_t {
    none,
    uniform,  // stretches of `items` items of the pattern: only the input of a stretch is kept
    block,    // of each of the first `items` items only the input is kept; all others keep everything
    modules,  // of every layer: what these parts of it write
  };
  Kind kind = Kind::none;
  int items = 1;  // counted in every segment and MTP depth
  RecomputeModules modules = 0;

  bool any() const { return kind != Kind::none; }
};

}  // namespace weft
