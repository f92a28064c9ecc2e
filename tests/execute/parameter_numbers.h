// Parameters of a session on one rank as doubles, whole ones.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "weft/train/session.h"

namespace weft {

inline std::vector<double> numbers_of(const ParameterPart& part, const HostTensor& tensor) {
  std::vector<double> numbers(static_cast<std::size_t>(part.shape.elements()));
  each_number(part, tensor, [&](std::int64_t i, double number) { numbers[static_cast<std::size_t>(i)] = number; });
  return numbers;
}

inline std::vector<double> initial_numbers(const ParameterPart& part, std::uint64_t seed) {
  ParameterPart alone = part;
  alone.place = {};
  HostTensor tensor(DType::f64, part.shape.elements());
  initialise(alone, seed, tensor);
  return numbers_of(alone, tensor);
}

using NumberSource = std::function<std::vector<double>(const ParameterPart& part)>;
inline void set_numbers(Session& session, const NumberSource& source) {
  session.set_parameters([&](const ParameterPart& part, HostTensor& tensor) {
    const std::vector<double> numbers = source(part);
    set_numbers(part, tensor, [&](std::int64_t i) { return numbers[static_cast<std::size_t>(i)]; });
  });
}

using NumberSink = std::function<void(const ParameterPart& part, const std::vector<double>& numbers)>;
inline void each_numbers(Session& session, Content content, const NumberSink& sink) {
  session.parameters().each(
      content, [&](const ParameterPart& part, const HostTensor& tensor) { sink(part, numbers_of(part, tensor)); });
}

}  // namespace weft
