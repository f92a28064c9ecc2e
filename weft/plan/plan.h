// A training step as plain data: nodes in the order in which each lane takes them, and the buffers they use. Nothing
// else decides an order: edges and lifetimes follow from the uses (edges.h, memory.h).
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

// What a buffer is for. Only activations and scratch must be dead at the end of a step.
enum class Storage : std::uint8_t { weight, gradient, state, step, constant, input, output, activation, scratch };
std::string_view name_of(Storage storage);

// gradients: a training step without its reductions and updates.
enum class PlanKind : std::uint8_t { train, gradients, evaluate };
std::string_view name_of(PlanKind kind);
// Whether plans of that kind run the phase: every piece that has it, in every micro-batch or once a step.
bool has_phase(PlanKind kind, Phase phase);

struct ValueInfo {  // what a module's value is, once for all its buffers
  std::string name;
  Storage storage = Storage::activation;
  DType dtype = DType::f32;
  Shape shape;
  std::int64_t bytes = 0;
  TensorId tensor = {};          // of weights, gradients and states
  std::string summed_over = {};  // a group of ranks: must be reduced over it, behind its last contribution
  std::int64_t first_summed_row = 0;
  ValueId counts = {};  // of rows that travel between ranks: how many lie here for (or from) each peer
  bool read_by_host = false;
  bool expert = false;   // of an expert's tensor: other ranks may hold other experts
  bool running = false;  // a sum that goes on from one micro-batch to the next
};

struct PieceInfo {
  std::string name;  // "main.3E.experts"
  std::string layer, piece;
  int unit = 0;
  std::uint8_t phases = 0;  // bit 1 << phase: the piece has it; 0: not known
  Part part = Part::layers;
  int depth = 0;  // 0: main part; d: MTP depth d
};

// What a node's communication is, the same on all ranks of the group.
struct NodeCollective {
  CollectiveKind kind = CollectiveKind::all_to_all;
  std::int32_t group = -1;  // of Plan::groups
  BufferId send, receive, send_counts, receive_counts;
  std::int64_t bytes = 0;      // that a rank sends, on average
  std::int64_t first_row = 0;  // all_reduce: rows before it stay as they are
};

// One instance of a value: its own for every micro-batch, or one for the step (micro_batch -1).
struct Buffer {
  ValueId value;
  std::int32_t micro_batch = -1;
  std::int32_t contributions = 0;  // how many `add`s it must get in a step
};

struct BufferUse {
  BufferId buffer;
  Access access = Access::read;
  // Of an `add`: its number, fixed when the node is made. Number 0 writes, the others add in the order of their
  // numbers, whatever order passes choose; so reordering cannot change a bit.
  std::int32_t contribution = -1;
};

// One piece, one phase, one micro-batch, on one rank.
struct Node {
  Phase phase = Phase::forward;
  Lane lane = Lane::compute;
  PieceId piece;                                       // of the plan's pieces
  std::int32_t micro_batch = -1;                       // -1: once a step
  std::int32_t first_use = 0, uses = 0;                // in Plan::uses, in the order of the piece's own uses
  std::int32_t first_collective = 0, collectives = 0;  // in Plan::collectives; none: arithmetic
  double flops = 0, bytes = 0;                         // filled by price()
  // Left over by the step before: what it reads is that step's. The nodes of a plan's first step without these, then
  // all of them in every step, then these alone (a flush) are a whole run.
  bool carried = false;
};

struct Plan {
  std::string pattern;
  PlanKind kind = PlanKind::train;
  int micro_batches = 1;
  std::vector<ValueInfo> values;  // by ValueId of the module
  std::vector<PieceInfo> pieces;  // the module's pieces, then its updates
  std::vector<Buffer> buffers;
  std::vector<BufferUse> uses;
  std::vector<Node> nodes;
  std::vector<NodeCollective> collectives;
  std::vector<std::string> groups;  // "ep", "dp", "edp"

  std::span<const NodeCollective> collectives_of(const Node& node) const {
    return std::span(collectives)
        .subspan(static_cast<std::size_t>(node.first_collective), static_cast<std::size_t>(node.collectives));
  }
  std::span<const BufferUse> uses_of(const Node& node) const {
    return std::span(uses).subspan(static_cast<std::size_t>(node.first_use), static_cast<std::size_t>(node.uses));
  }
  const ValueInfo& value_of(BufferId buffer) const { return values[buffers[buffer.index()].value.index()]; }
  std::string name_of(BufferId buffer) const;   // "main.0*.xn@2"
  std::string name_of(const Node& node) const;  // "backward main.0*.mix@2"
};

}  // namespace weft
