// A training step as plain data: nodes in the order in which each lane runs them, and the buffers they use. Nothing
// else determines an order: edges and lifetimes follow from the uses (edges.h, memory.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/base/ids.h"
#include "weft/base/shape.h"
#include "weft/model/module.h"

namespace weft {

// What a buffer is for, and so how long it lives. Only those that share the arena by their lifetimes must be dead
// at the end of a step.
enum class StorageClass : std::uint8_t {
  weight,
  gradient,
  state,
  step,
  constant,
  input,
  output,
  activation,
  scratch,
  gathered,  // a parameter whose parts come from several ranks: alive from its gather to its release
  partial,   // a rank's own sum of such a parameter's gradient: alive from its first contribution to its reduction
  host,      // in host memory: counts that the host waits for
};
std::string_view name_of(StorageClass storage);
// Whether such buffers share the arena by their lifetimes.
bool shares_arena(StorageClass storage);

// gradients: a training step without its reductions and updates.
enum class PlanKind : std::uint8_t { train, gradients, evaluate };
std::string_view name_of(PlanKind kind);
// Whether plans of that kind may run the phase: for every piece that has it, in every micro-batch or once per step.
bool has_phase(PlanKind kind, Phase phase);

struct ValueInfo {  // shared by all buffers of a value; the module's values, then those that passes add
  std::string name;
  StorageClass storage = StorageClass::activation;
  DType dtype = DType::f32;
  Shape shape;
  std::int64_t bytes = 0;
  TensorId tensor = {};      // of weights, gradients, states and gathered parameters
  GroupId summed_over = {};  // must be reduced over it, after its last contribution
  std::int64_t first_summed_row = 0;
  // Rows that are summed over other groups than those before them, which then end where these begin.
  struct RowSum {
    GroupId over;
    std::int64_t first = 0;
  };
  std::vector<RowSum> further_sums = {};
  GroupId replicas = {};        // of gradients: the ranks that hold the same parameter; invalid: this rank alone
  GroupId exchanged_over = {};  // of rows that ranks exchange, and of gathered parameters
  ValueId counts = {};          // of such rows: the number for (or from) each peer
  std::int32_t norm_row = 0;    // of gradients: the row of the sums of squares that counts it; -1: none does
  bool given_by_host = false;   // of step values: no node computes it
  bool read_by_host = false;
  bool running = false;  // a sum that continues from one micro-batch to the next
  int part = 0;          // a rank's part of a divided tensor, after which division (Module::shards); 0: whole
};

// Elements that its memory has room for.
std::int64_t elements_of(const ValueInfo& value);

using PlaceId = Id<struct PlaceTag>;

// Where a node is in the model: its name in plans, traces and errors. The module's pieces, then its updates, then
// places that passes add for nodes without a piece.
struct PlaceInfo {
  std::string name;  // "main.3E.experts"
  std::string layer, piece;
  int unit = 0;
  std::uint8_t phases = 0;  // bit 1 << phase: the piece has code for it; 0: there is no piece, or it is not known
  Section section = Section::layers;
  int depth = 0;  // 0: main part; d: MTP depth d
};

using MatchId = Id<struct MatchTag>;

// A node's communication: the same on all ranks of the group, except for the peer of a transfer.
struct NodeCollective {
  CollectiveKind kind = CollectiveKind::all_to_all;
  GroupId group;  // of Plan::groups
  // A send has no `receive`, a receive no `send`, a barrier neither. In a broadcast both are the same buffer, in an
  // all_reduce they may be.
  BufferId send, receive;
  BufferId send_counts, receive_counts;  // of an exchange of rows, in device memory
  // The same summed per peer, i64 [peers], if the host must know them: a wait fills them.
  BufferId host_send_counts, host_receive_counts;
  std::int64_t bytes = 0;      // that a rank sends, on average
  std::int64_t first_row = 0;  // all_reduce: rows before it are unchanged,
  std::int64_t end_row = 0;    // and from this one on; 0: none
  std::int32_t peer = -1;      // of a transfer: the other side, by its position in the group; of a broadcast: the root
  MatchId match;               // of a transfer: the same number on both sides, and on no other transfer between them
};

// One instance of a value: one per micro-batch, or one for the step (micro_batch -1). A value may have several at once:
// a parameter gathered for the forward pass of one micro-batch and the backward pass of another, a kept value and the
// same one recomputed.
struct Buffer {
  ValueId value;
  std::int32_t micro_batch = -1;
  std::int32_t contributions = 0;  // number of `add`s that it must get in a step
  std::int32_t instance = 0;
};

struct BufferUse {
  BufferId buffer;
  Access access = Access::read;
  // Of an `add`: its number, fixed when the node is made, by micro-batch and consumer. Number 0 writes; the others add
  // in the order of their numbers, whatever order passes choose. So reordering cannot change a bit.
  std::int32_t contribution = -1;
};

enum class NodeKind : std::uint8_t {
  compute,         // the arithmetic of a piece
  communicate,     // the collectives of the node, in order
  wait_counts,     // the host waits for counts of rows: reads them, writes their copies
  sum_of_squares,  // of the gradients it reads, each into the row that its value names
  accumulate,      // adds sums over ranks to what a rank keeps: pairs of uses, from and to
  release,         // ends the life of the gathered parameters that it writes
};
std::string_view name_of(NodeKind kind);

// One piece, one phase, one micro-batch, on one rank; or what a pass adds between pieces.
struct Node {
  NodeKind kind = NodeKind::compute;
  Phase phase = Phase::forward;
  Lane lane = Lane::compute;
  PlaceId place;                                       // of Plan::places
  PieceId piece;                                       // of the module; invalid: a pass made the node
  std::int32_t part = -1;                              // of the piece (Piece::parts), computed again; -1: all of it
  std::int32_t micro_batch = -1;                       // -1: once per step
  std::int32_t first_use = 0, uses = 0;                // in Plan::uses; of a piece's node, in the order of its own uses
  std::int32_t first_collective = 0, collectives = 0;  // in Plan::collectives
  double flops = 0, bytes = 0;                         // filled by price()
  // Left over from the previous step: it reads that step's values. A whole run is: a first step without these nodes,
  // then steps with all nodes, then these alone (a flush).
  bool carried = false;
};

struct Plan {
  std::string pattern;
  PlanKind kind = PlanKind::train;
  int micro_batches = 1;
  std::vector<ValueInfo> values;  // by ValueId: the module's, then those that passes add
  std::vector<PlaceInfo> places;
  std::vector<Buffer> buffers;
  std::vector<BufferUse> uses;
  std::vector<Node> nodes;
  std::vector<NodeCollective> collectives;
  std::vector<std::string> groups;  // names by GroupId: "dp", "ep", "edp"

  std::span<const NodeCollective> collectives_of(const Node& node) const {
    return std::span(collectives)
        .subspan(static_cast<std::size_t>(node.first_collective), static_cast<std::size_t>(node.collectives));
  }
  std::span<const BufferUse> uses_of(const Node& node) const {
    return std::span(uses).subspan(static_cast<std::size_t>(node.first_use), static_cast<std::size_t>(node.uses));
  }
  const PlaceInfo& place_of(const Node& node) const { return places[node.place.index()]; }
  const ValueInfo& value_of(BufferId buffer) const { return values[buffers[buffer.index()].value.index()]; }
  const std::string& name_of(GroupId group) const { return groups[group.index()]; }
  std::string name_of(BufferId buffer) const;   // "main.0*.xn@2"; a second instance: "main.0*.xn@2#1"
  std::string name_of(const Node& node) const;  // "backward main.0*.mix@2"

  // For passes. make_node does not add the node to `nodes`.
  ValueId add_value(ValueInfo value);
  BufferId add_buffer(ValueId value, std::int32_t micro_batch = -1, std::int32_t instance = 0);
  PlaceId add_place(int unit, const std::string& layer, const std::string& piece);
  Node make_node(NodeKind node_kind, Phase phase, Lane lane, PlaceId place, std::int32_t micro_batch,
                 std::span<const BufferUse> used, std::span<const NodeCollective> communication = {});
};

// True for all lanes except `compute` and `update`.
bool lane_communicates(Lane lane);

}  // namespace weft
