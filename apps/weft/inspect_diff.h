// `weft inspect --diff`.
#pragma once

#include <string>

#include "weft/base/json.h"
#include "weft/checkpoint/tensor_view.h"

namespace weft {

struct InspectFlags {
  bool json = false, tensors = false, verify = false;
  std::string only;  // a glob; "": all tensors

  bool wanted(const std::string& name) const;
};

Json to_json(const ViewedTensor& tensor);
// Returns the exit code: 0 equal, 1 not.
int inspect_diff(const std::string& a, const std::string& b, const InspectFlags& flags);

}  // namespace weft
