#include "weft/train/parameter_owners.h"

#include "weft/base/error.h"

namespace weft {

ParameterOwners::ParameterOwners(const SessionOptions& options) {
  std::vector<RankId> ranks = options.layout.owners();
  if (options.sharding != ShardingStrategy::no_shard) {  // each owns its parts
    ranks.clear();
    for (int r = 0; r < options.layout.ranks(); ++r) ranks.emplace_back(r);
  }
  for (RankId rank : ranks) {
    ModuleOptions there = training_step(options).module;
    there.layout = options.layout.seen_from(rank);
    const Module module = build_module(options.config, there);
    for (std::size_t i = 0; i < module.parameters.size(); ++i) {
      const ParameterTensor& tensor = module.parameters[i];
      if (!there.layout.owns(tensor.placement)) continue;
      for (const ParameterPart& part : tensor.parts)
        parts_[part.identity].push_back(
            {rank, TensorId(static_cast<std::int64_t>(i)), part, tensor.trained || tensor.balance_rate > 0});
    }
  }
  for (const auto& [identity, parts] : parts_) {
    std::int64_t elements = 0;
    for (const OwnedPart& owned : parts) elements += owned.part.elements();
    WEFT_CHECK(elements == parts[0].part.shape.elements(), "ranks own {} elements of {}, which has {}", elements,
               to_text(identity), parts[0].part.shape.elements());
  }
}

const std::vector<OwnedPart>& ParameterOwners::of(const ParameterIdentity& identity) const {
  const auto at = parts_.find(identity);
  WEFT_CHECK(at != parts_.end(), "the model has no parameter {}", to_text(identity));
  return at->second;
}

}  // namespace weft
