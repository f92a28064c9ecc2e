#include "weft/plan/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "weft/plan/edges.h"

namespace weft {

namespace {

std::string_view word(Access access) {
  switch (access) {
    case Access::read:
      return "read";
    case Access::write:
      return "write";
    case Access::add:
      return "add";
  }
  return "?";
}

}  // namespace

std::string to_text(const Plan& plan, const NodeCollective& c) {
  std::string text = fmt::format("{} over {}:", name_of(c.kind), plan.name_of(c.group));
  if (c.send.valid()) text += " " + plan.name_of(c.send);
  if (c.receive.valid()) text += " -> " + plan.name_of(c.receive);
  if (c.match.valid()) text += fmt::format(" {} {}, match {}", c.send.valid() ? "to" : "from", c.peer, c.match.value);
  if (c.kind == CollectiveKind::broadcast) text += fmt::format(" from {}", c.peer);
  return text;
}

std::string to_text(const Plan& plan, const MemoryPlan& memory) {
  std::string text = fmt::format("plan {}\nkind {}\nmicro_batches {}\nnodes {}\nbuffers {}\n", plan.pattern,
                                 name_of(plan.kind), plan.micro_batches, plan.nodes.size(), plan.buffers.size());
  text += fmt::format("memory weights {} gradients {} states {} step {} activations {}\n", memory.weights,
                      memory.gradients, memory.states, memory.step, memory.activations);
  for (const ValueInfo& v : plan.values)
    text += fmt::format("value {} {} {} {}\n", v.name, name_of(v.storage), name_of(v.dtype), to_text(v.shape));
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    text += fmt::format("node {} {} {}{}\n", i, name_of(node.lane), plan.name_of(node),
                        node.carried ? " of the previous step" : "");
    for (const BufferUse& use : plan.uses_of(node)) {
      text += fmt::format("  {} {}", word(use.access), plan.name_of(use.buffer));
      if (use.access == Access::add)
        text += fmt::format(" {}/{}", use.contribution, plan.buffers[use.buffer.index()].contributions);
      text += '\n';
    }
    for (const NodeCollective& c : plan.collectives_of(node)) text += "  " + to_text(plan, c) + "\n";
  }
  return text;
}

Json to_json(const Plan& plan, const MemoryPlan& memory) {
  Json json;
  json["pattern"] = plan.pattern;
  json["kind"] = name_of(plan.kind);
  json["micro_batches"] = plan.micro_batches;
  json["memory"] = {{"weights", memory.weights}, {"gradients", memory.gradients},     {"states", memory.states},
                    {"step", memory.step},       {"activations", memory.activations}, {"arena", memory.arena},
                    {"total", memory.total()}};
  json["groups"] = plan.groups;
  json["buffers"] = Json::array();
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const BufferId id(static_cast<std::int64_t>(i));
    const ValueInfo& v = plan.value_of(id);
    Json shape = Json::array();
    for (int dim = 0; dim < v.shape.dims(); ++dim) shape.push_back(v.shape[dim]);
    json["buffers"].push_back({{"id", i},
                               {"name", plan.name_of(id)},
                               {"value", v.name},
                               {"micro_batch", plan.buffers[i].micro_batch},
                               {"storage", name_of(v.storage)},
                               {"dtype", name_of(v.dtype)},
                               {"shape", shape},
                               {"bytes", v.bytes},
                               {"offset", memory.offset[i]},
                               {"contributions", plan.buffers[i].contributions},
                               {"instance", plan.buffers[i].instance},
                               {"summed_over", v.summed_over.valid() ? plan.name_of(v.summed_over) : ""},
                               {"first_summed_row", v.first_summed_row},
                               {"first_node", memory.lifetimes[i].first},
                               {"last_node", memory.lifetimes[i].last}});
  }
  const Edges edges = derive_edges(plan);
  std::vector<LaneMarks> for_memory(plan.nodes.size(), no_marks);
  for (const MemoryReuse& reuse : memory.reuses) join(for_memory[reuse.node.index()], reuse.after);
  json["nodes"] = Json::array();
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    Json uses = Json::array(), before = Json::array(), before_memory = Json::array();
    for (const BufferUse& use : plan.uses_of(node)) {
      Json u = {{"buffer", use.buffer.value}, {"access", word(use.access)}};
      if (use.access == Access::add) u["contribution"] = use.contribution;
      uses.push_back(u);
    }
    Json collectives = Json::array();
    for (const NodeCollective& c : plan.collectives_of(node))
      collectives.push_back({{"kind", name_of(c.kind)},
                             {"group", plan.name_of(c.group)},
                             {"send", c.send.value},
                             {"receive", c.receive.value},
                             {"send_counts", c.send_counts.value},
                             {"receive_counts", c.receive_counts.value},
                             {"host_send_counts", c.host_send_counts.value},
                             {"host_receive_counts", c.host_receive_counts.value},
                             {"peer", c.peer},
                             {"match", c.match.value},
                             {"first_row", c.first_row},
                             {"end_row", c.end_row},
                             {"bytes", c.bytes}});
    for (NodeId id : edges.before(NodeId(static_cast<std::int64_t>(i)))) before.push_back(id.value);
    for (std::int32_t mark : for_memory[i])
      if (mark >= 0) before_memory.push_back(mark);
    json["nodes"].push_back({{"id", i},
                             {"name", plan.name_of(node)},
                             {"kind", name_of(node.kind)},
                             {"phase", name_of(node.phase)},
                             {"lane", name_of(node.lane)},
                             {"place", plan.place_of(node).name},
                             {"unit", plan.place_of(node).unit},
                             {"micro_batch", node.micro_batch},
                             {"carried", node.carried},
                             {"flops", node.flops},
                             {"bytes", node.bytes},
                             {"uses", uses},
                             {"collectives", collectives},
                             {"after", before},
                             {"after_memory", before_memory},
                             {"live_bytes", memory.live[i]}});
  }
  return json;
}

}  // namespace weft
