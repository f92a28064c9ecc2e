#pragma once

#include <cstdint>
#include <string_view>

namespace weft {

// What is divided over the ranks that hold the same parameters. Each includes those before it.
enum class ShardingStrategy : std::uint8_t {
  no_shard,
  optim,               // weights as they are trained, and the optimizer's state; gradients are summed once per step
  optim_grads,         // gradients: summed after every micro-batch
  optim_grads_params,  // weights as they are used: gathered for each use
};
std::string_view name_of(ShardingStrategy strategy);

}  // namespace weft
