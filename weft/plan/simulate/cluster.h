// How fast a cluster is, and how long its ranks take to communicate. Times are seconds, sizes bytes, rates per second.
#pragma once

#include <span>
#include <string>

#include "weft/grid/grid.h"
#include "weft/plan/plan.h"

namespace weft {

struct LinkSpeed {
  double latency = 20e-6;  // seconds
  double bandwidth = 2e9;  // bytes per second that one rank sends
  bool operator==(const LinkSpeed&) const = default;
};

// The defaults are roughly those of a few CPU cores with ranks as threads.
struct Cluster {
  double flops = 100e9, bytes = 10e9;  // per second, of the compute lane; bytes: memory traffic
  double node_overhead = 2e-6;         // seconds per node of a plan
  int ranks_per_machine = 0;           // ranks 0 to n - 1 share a machine, n to 2n - 1 the next; 0: all share one
  LinkSpeed within, between;           // ranks of the same machine, and of different machines

  std::int64_t machine_of(RankId rank) const { return ranks_per_machine > 0 ? rank.value / ranks_per_machine : 0; }
};
std::string to_text(const Cluster& cluster);  // "100.0 GFLOP/s, 10.0 GB/s of memory, ..."

// Where the ranks of a group are.
struct GroupPlace {
  int ranks = 1;
  int fewest = 1, most = 1;  // ranks on a machine that has any
  bool operator==(const GroupPlace&) const = default;
};
GroupPlace place_of(std::span<const RankId> group, const Cluster& cluster);

// Of a compute node: the time of its FLOPs or of its memory traffic, whichever is longer.
double seconds_of(const Node& node, const Cluster& cluster);

// Of a collective of all n ranks of a group, from the arrival of the last rank. 0 for one rank. With B =
// NodeCollective::bytes, what a rank contributes:
//
//   all_reduce      a ring: 2(n-1) latency + 2(n-1)/n B / bandwidth
//   reduce_scatter  a ring: (n-1) latency + (n-1)/n B / bandwidth
//   all_gather      a ring: (n-1) latency + (n-1) B / bandwidth; B is a part, nB the whole
//   broadcast       a tree, in pieces: ceil(log2 n) latency + B / bandwidth
//   barrier         a tree: ceil(log2 n) latency
//   all_to_all      B/n to every other rank. Each link takes latency + its peers' B/n / bandwidth, for the rank with
//                   the most peers there; both links work at once, so the slower one counts.
//
// Rings and trees use the link within a machine if one machine has all ranks, the link between machines if each has
// one, and otherwise the higher latency and the lower bandwidth of the two. Contention is ignored: other traffic on a
// link slows nothing down.
double seconds_of(const NodeCollective& collective, const GroupPlace& place, const Cluster& cluster);

// Of a transfer between two ranks, from the arrival of both: latency + bytes / bandwidth of their link.
double transfer_seconds(double bytes, const LinkSpeed& link);

}  // namespace weft
