#include "weft/checkpoint/parameter_shapes.h"

namespace weft {
namespace {

std::optional<Shape> shape_if(bool there, const Shape& shape) { return there ? std::optional(shape) : std::nullopt; }

}  // namespace

std::optional<Shape> mamba_shape(const MambaSpec& spec, std::int64_t hidden, Role role) {
  const std::int64_t inner = spec.width(), states = spec.groups * spec.state;
  switch (role) {
    case Role::norm:
      return Shape{hidden};
    case Role::z:
    case Role::x:
      return Shape{inner, hidden};
    case Role::B:
    case Role::C:
      return Shape{states, hidden};
    case Role::dt:
      return Shape{spec.heads, hidden};
    case Role::conv_x:
      return Shape{inner, spec.taps};
    case Role::conv_B:
    case Role::conv_C:
      return Shape{states, spec.taps};
    case Role::conv_x_bias:
      return shape_if(spec.conv_bias, {inner});
    case Role::conv_B_bias:
    case Role::conv_C_bias:
      return shape_if(spec.conv_bias, {states});
    case Role::A_log:
    case Role::D:
    case Role::dt_bias:
      return Shape{spec.heads};
    case Role::mixer_norm:
      return Shape{inner};
    case Role::output:
      return Shape{hidden, inner};
    default:
      return {};
  }
}

std::optional<Shape> delta_net_shape(const DeltaNetSpec& spec, std::int64_t hidden, Role role) {
  switch (role) {
    case Role::norm:
      return Shape{hidden};
    case Role::q:
    case Role::k:
      return Shape{spec.key_width(), hidden};
    case Role::v:
    case Role::z:
      return Shape{spec.width(), hidden};
    case Role::beta:
    case Role::alpha:
      return Shape{spec.heads, hidden};
    case Role::conv_q:
    case Role::conv_k:
      return Shape{spec.key_width(), spec.taps};
    case Role::conv_v:
      return Shape{spec.width(), spec.taps};
    case Role::A_log:
    case Role::dt_bias:
      return Shape{spec.heads};
    case Role::mixer_norm:
      return Shape{spec.head_dim};
    case Role::output:
      return Shape{hidden, spec.width()};
    default:
      return {};
  }
}

}  // namespace weft
