// The options that balance experts: from Megatron's two lists (kinds of loss, coefficients) to one coefficient per kind.
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "weft/base/text.h"
#include "weft/train/options.h"

namespace weft {

std::optional<std::string> balance_losses(const ModelOptions& model, BalanceSpec& balance) {
  const std::vector<std::string>&kinds = model.moe_router_load_balancing_type, &words = model.moe_aux_loss_coeff;
  if (words.size() != kinds.size())
    return fmt::format(
        "--moe-aux-loss-coeff has {} values and --moe-router-load-balancing-type {}; give one coefficient per loss",
        words.size(), kinds.size());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    double coefficient = 0;
    if (!parse_double(words[i], coefficient) || !(coefficient >= 0))
      return fmt::format("--moe-aux-loss-coeff: '{}' is not a number of at least 0", words[i]);
    double* of = kinds[i] == "aux_loss"          ? &balance.aux_loss
                 : kinds[i] == "seq_aux_loss"    ? &balance.sequence_aux_loss
                 : kinds[i] == "global_aux_loss" ? &balance.global_aux_loss
                                                 : nullptr;
    if (kinds[i] == "sinkhorn" || kinds[i] == "quantile_balancing")
      return fmt::format(
          "--moe-router-load-balancing-type {}: Weft has no such router; use aux_loss, seq_aux_loss, global_aux_loss, "
          "or --moe-router-enable-expert-bias",
          kinds[i]);
    if (kinds[i] == "none") {
      if (kinds.size() > 1) return "--moe-router-load-balancing-type none: cannot be combined with others";
      if (coefficient != 0)
        return "--moe-aux-loss-coeff: has no effect with --moe-router-load-balancing-type none; drop one of the two";
      continue;
    }
    if (of == nullptr)
      return fmt::format(
          "--moe-router-load-balancing-type: '{}' is not one of aux_loss, seq_aux_loss, global_aux_loss, none",
          kinds[i]);
    if (*of != 0) return fmt::format("--moe-router-load-balancing-type: {} is given twice; keep one", kinds[i]);
    *of = coefficient;
  }
  return std::nullopt;
}

BalanceSpec balance_spec(const ModelOptions& model) {
  BalanceSpec balance;
  balance_losses(model, balance);  // checked with the other options
  balance.z_loss = model.moe_z_loss_coeff;
  if (model.moe_router_enable_expert_bias) balance.bias_update_rate = model.moe_router_bias_update_rate;
  balance.capacity_factor = std::max(0.0, model.moe_expert_capacity_factor);  // Megatron: below 0 means none
  balance.drop_policy = model.moe_token_drop_policy;
  balance.pad_to_capacity = model.moe_pad_expert_input_to_capacity;
  balance.forced = model.moe_router_force_load_balancing;
  return balance;
}

}  // namespace weft
