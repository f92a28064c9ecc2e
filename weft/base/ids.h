// Strong types for ids: a BufferId is not a NodeId.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace weft {

template <class Tag>
struct Id {
  std::int32_t value = -1;

  constexpr Id() = default;
  constexpr explicit Id(std::int64_t v) : value(static_cast<std::int32_t>(v)) {}
  constexpr bool valid() const { return value >= 0; }
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  constexpr auto operator<=>(const Id&) const = default;
};

using NodeId = Id<struct NodeTag>;
using BufferId = Id<struct BufferTag>;
using TensorId = Id<struct ParameterTensorTag>;  // a physical parameter tensor of a model
using RankId = Id<struct RankTag>;
using PieceId = Id<struct PieceTag>;  // of a module: its pieces, then its updates

}  // namespace weft
