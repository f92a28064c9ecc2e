#include "weft/base/dtype.h"

#include "weft/base/error.h"

namespace weft {

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::bf16:
    case DType::i16:
      return 2;
    case DType::u8:
      return 1;
  }
  WEFT_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::bf16:
      return "bf16";
    case DType::i16:
      return "i16";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u8:
      return "u8";
  }
  WEFT_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

}  // namespace weft
