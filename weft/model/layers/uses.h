// Shorthands for the list of values that a piece's code uses, and for values that a model may lack.
#pragma once

#include <initializer_list>

#include "weft/model/module.h"

namespace weft {

// Without those that are invalid.
inline void reads(PieceCode& code, std::initializer_list<ValueId> values) {
  for (ValueId value : values)
    if (value.valid()) code.uses.push_back({value});
}

inline void writes(PieceCode& code, std::initializer_list<ValueId> values) {
  for (ValueId value : values) code.uses.push_back({value, Access::write});
}

inline void adds_to(PieceCode& code, std::initializer_list<ValueId> values) {
  for (ValueId value : values) code.uses.push_back({value, Access::add});
}

// No tensor where the model has no such value.
inline Tensor given(const Run& r, ValueId value) { return value.valid() ? r[value] : Tensor{}; }

}  // namespace weft
