// Finds a device's code for an activation without a gate.
#pragma once

#include "weft/device/operations/activation.h"
#include "weft/device/refuse.h"

namespace weft {

// body(kind) with one of the device's own types.
template <class SquaredRelu, class GeluTanh, class GeluErf, class Body>
void with_plain_activation(ActivationKind kind, const Body& body) {
  switch (kind) {
    case ActivationKind::squared_relu:
      return body(SquaredRelu{});
    case ActivationKind::gelu:
      return body(GeluTanh{});
    case ActivationKind::gelu_erf:
      return body(GeluErf{});
    default:
      refuse("activation", "of no known kind");
  }
}

}  // namespace weft
