// How fast a cluster is, and how long its ranks take to communicate. Times are seconds, sizes bytes, rates per second.
#pragma once

#include <span>
#include <string>

#include "weft/grid/grid.h"
#include "weft/plan/plan.h"

namespace weft {

struct LinkSpeed {
  double latency = 20e-6;  // seconds
  double bandwidth = 2e9;  // bytes a second, that one rank sends
  bool operator==(const LinkSpeed&) const = default;
};

// The defaults are about those of a few cores of a CPU with ranks as threads.
struct Cluster {
  double flops = 100e9, bytes = 10e9;  // a second, of the compute lane; bytes: memory traffic
  double node_overhead = 2e-6;         // seconds, of every node of a plan
  int ranks_per_node = 0;              // ranks 0 to n - 1 share a machine, n to 2n - 1 the next; 0: all share one
  LinkSpeed within, between;           // ranks of one machine, and of two

  std::int64_t machine_of(RankId rank) const { return ranks_per_node > 0 ? rank.value / ranks_per_node : 0; }
};
std::string to_text(const Cluster& cluster);  // "100.0 GFLOP/s, 10.0 GB/s of memory, ..."

// Where the ranks of a group are.
struct GroupPlace {
  int ranks = 1;
  int fewest = 1, most = 1;  // on a machine that has any of them
  bool operator==(const GroupPlace&) const = default;
};
GroupPlace place_of(std::span<const RankId> group, const Cluster& cluster);

// A compute node: as long as its FLOPs or its memory traffic, whichever takes longer.
double seconds_of(const Node& node, const Cluster& cluster);

// A collective that all n ranks of a group take part in, from when the last of them has come. Of one rank: 0. With B =
// NodeCollective::bytes, what a rank gives:
//
//   all_reduce      a ring: 2(n-1) latency + 2(n-1)/n B / bandwidth
//   reduce_scatter  a ring: (n-1) latency + (n-1)/n B / bandwidth
//   all_gather      a ring: (n-1) latency + (n-1) B / bandwidth; B is a part, nB the whole
//   broadcast       a tree, in pieces: ceil(log2 n) latency + B / bandwidth
//   barrier         a tree: ceil(log2 n) latency
//   all_to_all      B/n to every other rank. Each link takes latency + its peers' B/n / bandwidth, for the rank that has the
//                   most peers there; both at once, so the slower link counts.
//
// Rings and trees take the link within a machine where one has all ranks, the link between where each has one, and else
// the higher latency and the lower bandwidth of the two. Links are not shared: what else goes over them slows nothing down.
double seconds_of(const NodeCollective& collective, const GroupPlace& place, const Cluster& cluster);

// A transfer between two ranks, from when both have come: latency + bytes / bandwidth of their link.
double transfer_seconds(double bytes, const LinkSpeed& link);

}  // namespace weft
