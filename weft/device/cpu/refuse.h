// How a kernel refuses wrong arguments. Compiled once, without the flags of an instruction set: a kernel file must
// instantiate no template of a library (fmt, std::string, ...), or the linker may pick its AVX-512 copy for everyone.
#pragma once

namespace weft {

[[noreturn]] void refuse(const char* operation, const char* why);  // BugError "operation: why"

}  // namespace weft
