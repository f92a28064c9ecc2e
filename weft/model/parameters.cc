#include "weft/model/parameters.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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
    case Role::shared_expert_gate:
      return "shared_expert_gate";
    case Role::latent_down:
      return "latent_down";
    case Role::latent_up:
      return "latent_up";
    case Role::output_gate:
      return "output_gate";
    case Role::z:
      return "z";
    case Role::x:
      return "x";
    case Role::B:
      return "B";
    case Role::C:
      return "C";
    case Role::dt:
      return "dt";
    case Role::conv_x:
      return "conv_x";
    case Role::conv_B:
      return "conv_B";
    case Role::conv_C:
      return "conv_C";
    case Role::conv_x_bias:
      return "conv_x_bias";
    case Role::conv_B_bias:
      return "conv_B_bias";
    case Role::conv_C_bias:
      return "conv_C_bias";
    case Role::A_log:
      return "A_log";
    case Role::dt_bias:
      return "dt_bias";
    case Role::D:
      return "D";
    case Role::mixer_norm:
      return "mixer_norm";
    case Role::beta:
      return "beta";
    case Role::alpha:
      return "alpha";
    case Role::conv_q:
      return "conv_q";
    case Role::conv_k:
      return "conv_k";
    case Role::conv_v:
      return "conv_v";
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

namespace {

double initial_value(const Init& init, std::uint64_t key, std::uint64_t index) {
  const auto between = [&](double low, double high) { return low + (high - low) * random_uniform(key, index); };
  switch (init.kind) {
    case Init::Kind::normal:
      return init.value * random_normal(key, index);
    case Init::Kind::constant:
      return init.value;
    case Init::Kind::uniform:
      return between(init.value, init.high);
    case Init::Kind::log_uniform:
      return std::log(between(init.value, init.high));
    case Init::Kind::step_bias: {
      const double step = std::exp(between(std::log(init.value), std::log(init.high)));
      return step + std::log(-std::expm1(-step));  // the inverse of softplus
    }
  }
  WEFT_CHECK(false, "init {}", static_cast<int>(init.kind));
}

}  // namespace

void initialise(const ParameterPart& part, std::uint64_t seed, HostTensor& tensor) {
  if (part.init.kind == Init::Kind::constant)
    return set_numbers(part, tensor, [&](std::int64_t) { return part.init.value; });
  const std::uint64_t key = random_key(seed, to_text(part.identity));
  set_numbers(part, tensor,
              [&](std::int64_t index) { return initial_value(part.init, key, static_cast<std::uint64_t>(index)); });
}

void set_to_zero(const ParameterPart& part, HostTensor& tensor) {
  const BoxRuns runs = part.runs();
  for (std::int64_t r = 0; r < runs.size(); ++r)
    std::memset(tensor.at(runs[r].tensor), 0, static_cast<std::size_t>(runs[r].count) * size_of(tensor.dtype));
}

void each_number(const ParameterPart& part, const HostTensor& tensor,
                 const std::function<void(std::int64_t index, double number)>& visit) {
  const BoxRuns runs = part.runs();
  for (std::int64_t r = 0; r < runs.size(); ++r) {
    const BoxRun run = runs[r];
    for (std::int64_t i = 0; i < run.count; ++i) visit(run.logical + i, number_at(tensor, run.tensor + i));
  }
}

void set_numbers(const ParameterPart& part, HostTensor& tensor,
                 const std::function<double(std::int64_t index)>& number) {
  const BoxRuns runs = part.runs();
  for (std::int64_t r = 0; r < runs.size(); ++r) {
    const BoxRun run = runs[r];
    for (std::int64_t i = 0; i < run.count; ++i) set_number(tensor, run.tensor + i, number(run.logical + i));
  }
}

}  // namespace weft
