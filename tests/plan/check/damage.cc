#include "tests/plan/check/damage.h"

#include "tests/plan/check/damage_edit.h"

namespace weft {

std::vector<DamageKind> damage_kinds() {
  std::vector<DamageKind> all;
  for (const auto& part : {damage::of_nodes(), damage::of_ranks(), damage::of_step(), damage::of_carried(),
                           damage::of_recomputation(), damage::of_memory()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<DamageKind> damage_kinds_of_divided() {
  std::vector<DamageKind> all;
  for (const auto& part : {damage::of_shards(), damage::of_shard_gradients()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<DamageKind> damage_kinds_of_stages() { return damage::of_stages(); }

}  // namespace weft
