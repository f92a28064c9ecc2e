// What a plan costs, before it runs.
#pragma once

#include <functional>

#include "weft/model/module.h"
#include "weft/plan/plan.h"

namespace weft {

struct PieceCost {
  double flops = 0, bytes = 0;  // bytes: memory traffic
};
// Asks what a phase of a piece costs; a dry run on a device that counts (weft/execute/dry_run.h).
using Pricer = std::function<PieceCost(const Piece&, Phase)>;

// Fills flops and bytes of every node; each (piece, phase) is priced once.
void price(Plan& plan, const Module& module, const Pricer& pricer);
double total_flops(const Plan& plan);

struct ParameterCount {
  std::int64_t all = 0;
  std::int64_t active = 0;  // that one token uses: k of the experts, without the embedding lookup
};
ParameterCount count_parameters(const Module& module, std::int64_t experts, std::int64_t chosen);

}  // namespace weft
