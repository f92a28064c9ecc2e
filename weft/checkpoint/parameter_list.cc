#include "weft/checkpoint/parameter_list.h"

#include "weft/model/build_module.h"

namespace weft {

std::vector<ListedParameter> parameters_of(const ModelConfig& config) {
  std::vector<ListedParameter> parameters;
  // On one rank every part is a whole parameter.
  for (const ParameterTensor& tensor : build_module(config, {}).parameters)
    for (const ParameterPart& part : tensor.parts)
      parameters.push_back({part.identity, part.shape, tensor.accumulate_dtype, tensor.trained});
  return parameters;
}

}  // namespace weft
