#include "weft/model/parameters.h"

#include <algorithm>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft {

std::string_view name_of(Role role) {
  switch (role) {
    case Role::embedding:
      return "embedding";
    case Role::final_norm:
      return "final_norm";
    case Role::head:
      return "head";
    case Role::mtp_embedding_norm:
      return "mtp_embedding_norm";
    case Role::mtp_hidden_norm:
      return "mtp_hidden_norm";
    case Role::mtp_projection:
      return "mtp_projection";
    case Role::norm:
      return "norm";
    case Role::q:
      return "q";
    case Role::k:
      return "k";
    case Role::v:
      return "v";
    case Role::q_bias:
      return "q_bias";
    case Role::k_bias:
      return "k_bias";
    case Role::v_bias:
      return "v_bias";
    case Role::output:
      return "output";
    case Role::output_bias:
      return "output_bias";
    case Role::q_norm:
      return "q_norm";
    case Role::k_norm:
      return "k_norm";
    case Role::sinks:
      return "sinks";
    case Role::q_down:
      return "q_down";
    case Role::q_latent_norm:
      return "q_latent_norm";
    case Role::q_up:
      return "q_up";
    case Role::kv_down:
      return "kv_down";
    case Role::kv_latent_norm:
      return "kv_latent_norm";
    case Role::k_up:
      return "k_up";
    case Role::v_up:
      return "v_up";
    case Role::indexer_q:
      return "indexer_q";
    case Role::indexer_k:
      return "indexer_k";
    case Role::indexer_weights:
      return "indexer_weights";
    case Role::indexer_norm:
      return "indexer_norm";
    case Role::indexer_norm_bias:
      return "indexer_norm_bias";
    case Role::gate:
      return "gate";
    case Role::up:
      return "up";
    case Role::down:
      return "down";
    case Role::gate_bias:
      return "gate_bias";
    case Role::up_bias:
      return "up_bias";
    case Role::down_bias:
      return "down_bias";
    case Role::router:
      return "router";
    case Role::router_bias:
      return "router_bias";
    case Role::expert_bias:
      return "expert_bias";
    case Role::shared_gate:
      return "shared_gate";
    case Role::shared_up:
      return "shared_up";
    case Role::shared_down:
      return "shared_down";
  }
  WEFT_CHECK(false, "role {}", static_cast<int>(role));
}

std::string to_text(const ParameterIdentity& identity) {
  std::string text = identity.module;
  text += identity.depth == 0 ? ".main" : fmt::format(".mtp{}", identity.depth);
  if (identity.physical >= 0) text += fmt::format(".{}", identity.physical);
  text += fmt::format(".{}", name_of(identity.role));
  if (identity.expert >= 0) text += fmt::format(".{}", identity.expert);
  return text;
}

void initialise(const ParameterPart& part, std::uint64_t seed, double* values) {
  const std::int64_t count = part.shape.elements();
  if (part.init.kind == Init::Kind::constant) {
    std::fill_n(values, count, part.init.value);
    return;
  }
  const std::uint64_t key = random_key(seed, to_text(part.identity));
  for (std::int64_t i = 0; i < count; ++i)
    values[i] = part.init.value * random_normal(key, static_cast<std::uint64_t>(i));
}

}  // namespace weft
