// A source of parameters that are made as doubles.
#pragma once

#include <vector>

#include "weft/checkpoint/disk_tensor.h"

namespace weft {

inline ParameterSource in_doubles(std::function<void(const ParameterIdentity& identity, double* out)> source) {
  return [source = std::move(source)](const ParameterIdentity& identity, StoredType type, std::span<std::byte> out) {
    std::vector<double> numbers(out.size() * 8 / static_cast<std::size_t>(bits_of(type)));
    source(identity, numbers.data());
    store_doubles(numbers.data(), type, out.data(), std::ssize(numbers));
  };
}

}  // namespace weft
