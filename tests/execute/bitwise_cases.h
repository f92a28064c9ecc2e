// The configurations for which every order, executor and communicator must give the same bits.
#pragma once

#include <cstring>

#include <fmt/format.h>

#include "tests/execute/ranks.h"

namespace weft {

struct NamedCase {
  std::string name;
  RankCase run;
};

// Patterns x layouts x micro-batches x experts x shared experts x routers, on so many ranks.
inline std::vector<NamedCase> bitwise_cases(int ranks) {
  std::vector<NamedCase> cases;
  for (const char* pattern : {"[*E][*E]", "*E-E*", "[*-][*E]-"})
    for (int expert_ranks : {1, 2, 4})
      for (const bool sigmoid : {false, true}) {
        if (expert_ranks > ranks) continue;
        RankCase c = small_case(pattern);
        c.config.experts.experts = sigmoid ? 4 : 8;
        c.config.experts.router.k = sigmoid ? 3 : 2;
        if (sigmoid) {
          c.config.experts.router.score = RouterSpec::Score::sigmoid;
          c.config.experts.router.choose_first = false;
          c.config.experts.router.normalise = true;
          c.config.experts.shared_ffn = 8;
          c.config.experts.expert_bias = true;
          c.config.experts.balance.bias_update_rate = 1e-3;
          c.config.experts.balance.global_aux_loss = 0.01;
        }
        c.config.tied_embeddings = expert_ranks == 2;
        c.clip = pattern[1] == '*' && pattern[2] == '-'
                     ? 0
                     : 1;  // without: updates run as soon as their gradients are there
        c.dtype = sigmoid ? DType::bf16 : DType::f32;
        c.ranks = ranks;
        c.expert_ranks = expert_ranks;
        c.micro_batches = sigmoid ? 4 : 3;
        c.steps = 5;
        cases.push_back({fmt::format("{} ranks={} ep={} {}", pattern, ranks, expert_ranks,
                                     sigmoid ? "sigmoid, shared, bf16" : "softmax, f32"),
                         c});
      }
  for (const char* pattern : {"MEM*EME", "M[M*]-[GE]"}) {
    if (ranks != 2) continue;
    RankCase c = cases.back().run;
    c.config.pattern = pattern;
    c.bf16_gradients = pattern[0] == 'M' && pattern[1] == 'E';
    cases.push_back({fmt::format("{} ranks={}", pattern, ranks), c});
  }
  for (const OrderKind order : {OrderKind::automatic, OrderKind::zero_bubble}) {
    if (ranks == 1) continue;
    RankCase c = cases[1].run;
    c.config.pattern = order == OrderKind::zero_bubble ? "[*E]|-/[*E]" : "E|-|[*E]|-";
    c.config.tied_embeddings = true;
    c.stages = 2;
    c.expert_ranks = ranks / 2;
    c.order = order;
    cases.push_back({fmt::format("{} ranks={} pp=2 {}", c.config.pattern, ranks, name_of(order)), c});
  }
  using enum ShardingStrategy;
  for (const ShardingStrategy strategy : {optim, optim_grads, optim_grads_params}) {
    if (ranks == 1) continue;
    RankCase c = cases[strategy == optim ? 0 : 3].run;  // with whole parameters
    c.sharding = strategy;
    c.instances = ranks == 4 && strategy != optim_grads ? 2 : 1;
    c.shard_over_instances = c.instances == 2 && strategy == optim_grads_params;
    cases.push_back({fmt::format("{} ranks={} ep={} {} in {}", c.config.pattern, ranks, c.expert_ranks,
                                 name_of(strategy), c.instances),
                     c});
  }
  for (const char* pattern : {"[*E]M-/[*E]", "[GE][*-]"}) {
    if (ranks == 1) continue;
    RankCase c = small_case(pattern);
    c.config.experts.shared_ffn = 8;
    c.config.experts.balance.aux_loss = 0.01;
    c.length = 8;
    c.dtype = ranks == 2 ? DType::f32 : DType::bf16;
    c.ranks = ranks;
    c.tensor_ranks = pattern[1] == '*' ? 2 : ranks;
    c.sequence = pattern[1] == '*';
    c.expert_tensor_ranks = c.sequence ? 1 : 2;
    c.expert_ranks = ranks / c.expert_tensor_ranks;
    c.sharding = c.sequence ? optim_grads_params : no_shard;
    c.micro_batches = 3;
    c.steps = 3;
    cases.push_back(
        {fmt::format("{} ranks={} tp={} etp={}", pattern, ranks, c.tensor_ranks, c.expert_tensor_ranks), c});
  }
  return cases;
}

inline std::uint64_t bits_of(std::uint64_t hash, const std::vector<double>& values) {
  for (double value : values) {
    std::uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(word));
    hash = (hash ^ word) * 1099511628211u;
    hash ^= hash >> 29;
  }
  return hash;
}

// One line for the losses and norms, one per parameter or one for all that are divided; equal lines mean equal bits.
inline std::vector<std::string> lines_of(const std::string& name, const RankRun& run) {
  std::vector<std::string> lines{
      fmt::format("bits {}: losses {:016x}", name, bits_of(bits_of(1, run.losses), run.norms))};
  if (!run.digest.empty()) {
    lines.push_back(fmt::format("bits {}: weights {}", name, run.digest));
    return lines;
  }
  for (const auto& [identity, values] : run.weights())
    lines.push_back(fmt::format("bits {}: {} {:016x}", name, to_text(identity), bits_of(1, values)));
  return lines;
}

}  // namespace weft
