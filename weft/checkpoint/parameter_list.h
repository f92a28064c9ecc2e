// The parameters of a model, whatever layout trains it.
#pragma once

#include <vector>

#include "weft/base/shape.h"
#include "weft/model/config.h"
#include "weft/model/parameters.h"

namespace weft {

struct ListedParameter {
  ParameterIdentity identity;
  Shape shape;
  bool accumulate_dtype = false;  // as in ParameterTensor
  bool trained = true;
};
// In the order of the model, experts one by one.
std::vector<ListedParameter> parameters_of(const ModelConfig& config);

}  // namespace weft
