// The overhead of the parallel executor per node: 10^5 empty nodes on one rank, every second one on another lane, each
// waiting for the previous one; and the same on a single lane.
//
//   ./run bench executor
#include <chrono>

#include <fmt/format.h>

#include "weft/device/cpu/device.h"
#include "weft/execute/parallel_executor.h"
#include "weft/plan/build.h"

namespace weft {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A chain of empty pieces; `hand_over`: every second one runs on the exchange lane.
Module chain(int pieces, bool hand_over) {
  Module m;
  const auto value = [&](const std::string& name, ValueKind kind) {
    m.values.push_back({name, kind, DType::f32, {1}});
    return ValueId(std::ssize(m.values) - 1);
  };
  m.step_values = value("step_values", ValueKind::step);
  ValueId before = value("input", ValueKind::input);
  for (int i = 0; i < pieces; ++i) {
    const ValueId after = value(fmt::format("v{}", i), ValueKind::activation);
    Piece piece;
    piece.place = {0, i, i, fmt::format("piece{}", i), "empty"};
    piece.lane = hand_over && i % 2 == 1 ? Lane::exchange : Lane::compute;
    piece.forward = {{{before}, {after, Access::write}}, [](const Run&) {}, {}};
    m.pieces.push_back(std::move(piece));
    before = after;
  }
  return m;
}

double microseconds_per_node(bool hand_over) {
  CpuDevice device;
  const auto stream = device.make_stream(1);
  const Module module = chain(10, hand_over);
  const ModelStorage storage(device, module);
  PlanOptions options;
  options.kind = PlanKind::evaluate;
  options.micro_batches = 10000;
  const PreparedPlan plan(module, build_plan(module, options), device, storage, *stream);
  ParallelExecutor executor(plan, device, *stream);
  executor.run_step();
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double begin = now();
    executor.run_step();
    best = std::min(best, now() - begin);
  }
  return 1e6 * best / static_cast<double>(plan.plan().nodes.size());
}

}  // namespace
}  // namespace weft

int main() {
  for (const bool hand_over : {false, true})
    fmt::print("{{\"bench\": \"executor\", \"nodes\": 100000, \"lanes\": {}, \"microseconds_per_node\": {:.2f}}}\n",
               hand_over ? 2 : 1, weft::microseconds_per_node(hand_over));
}
