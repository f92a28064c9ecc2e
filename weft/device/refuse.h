// How an operation refuses wrong arguments, on any device. Compiled once, without the flags of an instruction set
// (a CPU kernel's file must instantiate no template of a library such as fmt, or the linker may pick its AVX-512 copy
// for everyone), and without any header, so that nvcc need not read the formatting library.
#pragma once

namespace weft {

[[noreturn]] void refuse(const char* operation, const char* why);  // BugError "operation: why"

}  // namespace weft
