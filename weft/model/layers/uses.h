// Shorthands for the list of values that a piece's code uses.
#pragma once

#include <initializer_list>

#include "weft/model/module.h"

namespace weft {

inline void reads(PieceCode& code, std::initializer_list<ValueId> values) {
  for (ValueId value : values) code.uses.push_back({value});
}

inline void writes(PieceCode& code, std::initializer_list<ValueId> values) {
  for (ValueId value : values) code.uses.push_back({value, Access::write});
}

inline void adds_to(PieceCode& code, std::initializer_list<ValueId> values) {
  for (ValueId value : values) code.uses.push_back({value, Access::add});
}

}  // namespace weft
