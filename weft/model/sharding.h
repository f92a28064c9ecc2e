// Divides the parameters of a module over the ranks that hold the same ones (ZeRO).
#pragma once

#include "weft/model/config.h"
#include "weft/model/module.h"

namespace weft {

// Makes every tensor that other ranks of its instance of the optimizer hold too a tensor of this rank's part (Shard). Dense
// tensors are divided over the data ranks, experts' over the ranks that hold the same experts. Parts begin at whole rows
// and at multiples of 128 bytes. What only this rank holds stays whole. So does a router's bias of the choice, which
// changes by counts, and, except under optim_grads_params, what is not trained.
// over_instances (optim_grads_params only): what the ranks of an instance then hold is divided once more, over the
// instances. Otherwise all instances hold the same parts.
void shard_parameters(Module& module, const Precision& precision, ShardingStrategy strategy, bool over_instances);

// The part's elements that lie in [first, first + count) of its tensor, both whole rows: as boxes whose places count from
// `first`.
std::vector<ParameterPart> clipped(const ParameterPart& part, std::int64_t first, std::int64_t count);

}  // namespace weft
