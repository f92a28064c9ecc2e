// --dist-ckpt-strictness: what a checkpoint may lack or have beyond the model.
#pragma once

#include <cstdint>

namespace weft {

// What happens to parameters that the checkpoint lacks, and to tensors that the model does not have. In Megatron's words
// the first are "unexpected" and the second "missing".
enum class Strictness : std::uint8_t {
  assume_ok_unexpected,  // the first are an error: they would keep their initial values
  log_unexpected,        // the first are reported, and keep their initial values
  log_all,               // both are reported
  raise_unexpected,      // the first are an error
  raise_all,             // both are
  return_unexpected,     // as log_unexpected, with the whole list
  return_all,            // as log_all, with both lists
  ignore_all,
};

}  // namespace weft
