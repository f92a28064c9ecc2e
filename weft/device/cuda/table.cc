#include "weft/device/cuda/table.h"

namespace weft::cuda {

void fill_table(Operations& table) {
#define WEFT_FILL(name, Arguments) table.name = &cuda::name;
  WEFT_OPERATIONS(WEFT_FILL)
#undef WEFT_FILL
}

}  // namespace weft::cuda
