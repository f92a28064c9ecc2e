// Nodes that no layer has, made as a pass makes them: transfers, a broadcast and a barrier move what the plan says, on
// every executor, also where work is queued.
#include <gtest/gtest.h>

#include "tests/execute/queued_cpu_device.h"
#include "weft/comm/local/cluster.h"
#include "weft/execute/parallel_executor.h"
#include "weft/execute/prepared_plan.h"

namespace weft {
namespace {

constexpr int ranks = 3;

// Every rank has numbers of its own.
Module module_of(const Layout& layout) {
  Module m;
  m.layout = layout;
  Value own{"own", ValueKind::constant, DType::f32, {4}};
  own.fill = [rank = layout.rank().value](double* out) {
    for (int i = 0; i < 4; ++i) out[i] = static_cast<double>(10 * rank + i);
  };
  m.values.push_back(own);
  for (const char* name : {"received", "shared"}) m.values.push_back({name, ValueKind::output, DType::f32, {4}});
  return m;
}

// Each rank sends its numbers to the next one, twice; what rank 1 receives the second time goes to all, in place.
Plan plan_of(const Module& m) {
  Plan plan;
  plan.kind = PlanKind::evaluate;
  plan.groups = m.layout.group_names();
  for (const Value& value : m.values) {
    ValueInfo info;
    info.name = value.name;
    info.storage = value.kind == ValueKind::constant ? StorageClass::constant : StorageClass::output;
    info.shape = value.shape;
    info.bytes = value.shape.elements() * 4;
    plan.add_value(info);
  }
  const BufferId own = plan.add_buffer(ValueId(0)), received = plan.add_buffer(ValueId(1)),
                 shared = plan.add_buffer(ValueId(2));
  const GroupId all = m.layout.data_ranks();
  const int here = m.layout.position_in(all), before = (here + ranks - 1) % ranks;
  const auto add = [&](const char* name, Lane lane, const std::vector<BufferUse>& uses,
                       const std::vector<NodeCollective>& calls) {
    plan.nodes.push_back(
        plan.make_node(NodeKind::communicate, Phase::evaluate, lane, plan.add_place(0, "test", name), -1, uses, calls));
  };
  const auto pass_on = [&](const char* name, BufferId to, int first_match) {
    NodeCollective send{CollectiveKind::send, all, own, {}}, receive{CollectiveKind::receive, all, {}, to};
    send.peer = (here + 1) % ranks;
    send.match = MatchId(first_match + here);
    receive.peer = before;
    receive.match = MatchId(first_match + before);
    add(name, Lane::tensor, {{own}, {to, Access::write}}, {send, receive});
  };
  pass_on("first", received, 0);
  add("meet", Lane::reduce, {}, {{CollectiveKind::barrier, all, {}, {}}});
  pass_on("second", shared, ranks);
  NodeCollective broadcast{CollectiveKind::broadcast, all, shared, shared};
  broadcast.peer = 1;
  add("spread", Lane::tensor, {{shared, Access::write}}, {broadcast});
  return plan;
}

struct Received {
  std::vector<double> received, shared;
};

Received run(World& world, Device& device, bool parallel) {
  const Layout layout = Layout::of_data_and_experts(ranks, 1, world.rank());
  const Module module = module_of(layout);
  const auto stream = device.make_stream(1);
  const ModelStorage storage(device, module);
  const Plan plan = plan_of(module);
  RankGroups groups(world, device, layout);
  groups.add(plan);
  const PreparedPlan prepared(module, plan, device, storage, *stream, &groups);
  for (int step = 0; step < 2; ++step) {
    if (parallel)
      ParallelExecutor(prepared, device, *stream).run_step();
    else
      run_serially(prepared, *stream);
  }
  return {prepared.read(*stream, ValueId(1)), prepared.read(*stream, ValueId(2))};
}

TEST(Transfers, move_what_the_plan_says_on_every_executor) {
  for (const bool queued : {false, true})
    for (const bool parallel : {false, true})
      LocalCluster(ranks).run([&](World& world) {
        CpuDevice at_once;
        QueuedCpuDevice late;
        const Received got = run(world, queued ? static_cast<Device&>(late) : at_once, parallel);
        const auto before = static_cast<double>(10 * ((world.rank().value + ranks - 1) % ranks));
        EXPECT_EQ(got.received, (std::vector<double>{before, before + 1, before + 2, before + 3}));
        EXPECT_EQ(got.shared, (std::vector<double>{0, 1, 2, 3})) << "queued " << queued << " parallel " << parallel;
      });
}

}  // namespace
}  // namespace weft
