// What a plan costs, before it runs.
#pragma once

#include <functional>

#include "weft/model/module.h"
#include "weft/plan/memory.h"
#include "weft/plan/plan.h"
#include "weft/plan/timeline.h"

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
// Of the whole model; `module` holds experts / expert_ranks of its experts.
ParameterCount count_parameters(const Module& module, std::int64_t experts, std::int64_t chosen,
                                std::int64_t expert_ranks = 1);

// How fast a machine is, for estimates of time: as it stands, about a few cores of a CPU and ranks that are threads.
struct MachineRates {
  double flops = 100e9, bytes = 10e9;       // a second, of the compute lane
  double latency = 20e-6, bandwidth = 2e9;  // of a transfer between ranks; bytes a second
  double node_overhead = 2e-6;              // seconds
};
std::string to_text(const MachineRates& rates);  // "100.0 GFLOP/s, 10.0 GB/s of memory, ..."

// Simulates the lanes of every rank: each node starts when its lane is free and what it waits for is done; a collective
// when all ranks of its group have come. All ranks run this plan.
Timeline estimate_timeline(const Plan& plan, const MemoryPlan& memory, int ranks, const MachineRates& rates);

}  // namespace weft
