#include "weft/device/cpu/kernels/table.h"

namespace weft::WEFT_ISA {

void fill_table(Operations& table) {
#define WEFT_FILL(name, Arguments) table.name = &WEFT_ISA::name;
  WEFT_OPERATIONS(WEFT_FILL)
#undef WEFT_FILL
}

}  // namespace weft::WEFT_ISA
