// The list of faults that the parts of the checker add to (internal to check*.cc).
#pragma once

#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "weft/plan/check/check.h"

namespace weft {

class FaultList {
 public:
  static constexpr std::size_t most = 1000;  // a longer list would not help

  FaultList(const Plan& plan, const std::string& whose) : plan_(plan), whose_(whose) {}

  bool full() const { return faults_.size() >= most; }
  bool empty() const { return faults_.empty(); }
  // Invalid nodes are left out.
  void add(std::initializer_list<NodeId> nodes, std::string message) {
    if (full()) return;
    PlanFault fault;
    fault.message = std::move(message);
    for (NodeId node : nodes) {
      if (!node.valid()) continue;
      fault.message += fmt::format("\n    {}: {}", place_of(node), plan_.name_of(plan_.nodes[node.index()]));
      fault.nodes.push_back(node);
    }
    if (fault.nodes.empty() && !whose_.empty()) fault.message += fmt::format("\n    {}", whose_);
    faults_.push_back(std::move(fault));
  }
  std::vector<PlanFault> take() { return std::move(faults_); }

 private:
  std::string place_of(NodeId node) const {
    return whose_.empty() ? fmt::format("node {}", node.value) : fmt::format("{}, node {}", whose_, node.value);
  }

  const Plan& plan_;
  std::string whose_;
  std::vector<PlanFault> faults_;
};

// The parts of check_plan. All but the first need a plan in which every index is in range.
void check_indices(const Plan& plan, FaultList& faults);
void check_nodes(const Plan& plan, FaultList& faults);        // each appears once; the final norm before the head
void check_collectives(const Plan& plan, FaultList& faults);  // what nodes send and receive
void check_buffers(const Plan& plan, FaultList& faults);      // reads, writes, contributions, reductions
void check_carried(const Plan& plan, FaultList& faults);      // what a step leaves to the next
void check_norm(const Plan& plan, FaultList& faults);         // each gradient counts once in the norm

// The collective of a node that writes a sum over ranks into the buffer; null: none.
const NodeCollective* sum_into(const Plan& plan, const Node& node, BufferId buffer);

inline NodeId node_id(std::size_t index) { return NodeId(static_cast<std::int64_t>(index)); }
inline BufferId buffer_id(std::size_t index) { return BufferId(static_cast<std::int64_t>(index)); }

}  // namespace weft
