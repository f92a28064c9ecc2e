// The kernels of one instruction set. Every file of this folder is compiled once for each (see CMakeLists.txt), inside
// namespace weft::WEFT_ISA, and the device picks one table at run time.
#pragma once

#include "weft/device/operations.h"

namespace weft {
namespace isa_baseline {
void fill_table(Operations& table);
}
namespace isa_v3 {  // AVX2, FMA
void fill_table(Operations& table);
}
namespace isa_v4 {  // AVX-512
void fill_table(Operations& table);
}

#ifdef WEFT_ISA
namespace WEFT_ISA {
#define WEFT_DECLARE(name, Arguments) void name(Stream&, const Arguments&);
WEFT_OPERATIONS(WEFT_DECLARE)
#undef WEFT_DECLARE
}  // namespace WEFT_ISA
#endif

}  // namespace weft
