// The calls that a plan makes to communicators, and how two calls that meet differ.
#pragma once

#include <compare>
#include <map>
#include <string>
#include <vector>

#include "weft/plan/plan.h"

namespace weft {

// A collective of a node.
struct Call {
  NodeId node;
  std::int32_t collective = 0;  // of Plan::collectives
};
struct CallKey {  // a communicator: the ranks of one group on one lane
  GroupId group;
  Lane lane = Lane::compute;
  auto operator<=>(const CallKey&) const = default;
};
using Calls = std::map<CallKey, std::vector<Call>>;  // in the order of the lane

Calls calls_of(const Plan& plan);

// How two calls of one communicator that are not transfers differ; "": they match.
std::string difference(const Plan& p, const Call& x, const Plan& q, const Call& y);

}  // namespace weft
