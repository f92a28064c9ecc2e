// A model, cut into pieces: what each reads, writes and adds to, and the device operations it runs. It describes one
// micro-batch; plan/ turns it into nodes and buffers for every micro-batch and decides their order.
#pragma once

#include <array>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/base/ids.h"
#include "weft/base/shape.h"
#include "weft/device/operations/store.h"
#include "weft/device/reduction.h"
#include "weft/device/tensor.h"
#include "weft/grid/layout.h"
#include "weft/model/parameters.h"
#include "weft/model/sharding_strategy.h"

namespace weft {

class Stream;
struct Operations;  // weft/device/operations.h

using ValueId = Id<struct ValueTag>;

enum class ValueKind : std::uint8_t {
  input,               // tokens, labels: one per micro-batch, written by the host before the step
  activation,          // one per micro-batch; dead at the end of the step
  scratch,             // lives within one node
  parameter,           // one per rank
  parameter_gradient,  // one per rank; every micro-batch adds to it
  constant,            // one per rank; computed on the host when a plan is prepared
  step,                // one per rank: the loss, step values
  state,               // one per rank: the optimizer's, for one parameter tensor
  running,             // one per block of micro-batches (PlanOptions::block), which all add to it
  before,              // refers to the `running` value of the previous block, or to a constant for the first block
  output,              // one per micro-batch; read by the host after the step
  gathered,            // a parameter whose parts are divided over ranks: whole only where it is used (Shard)
  partial_gradient,    // a rank's own sum, of such a parameter: what the ranks then sum and divide
};

struct Value {
  std::string name;
  ValueKind kind = ValueKind::activation;
  DType dtype = DType::f32;
  Shape shape;
  TensorId tensor;                             // of parameters and their gradients
  std::function<void(double* out)> fill = {};  // of constants, row-major
  ValueId running = {}, initial = {};  // of `before`: the running value, and the constant before the first block
  double in_use = 1;                   // share of its rows used on average: routed values have room for the worst case
  // The group whose ranks' values are summed: in place after the last contribution, or from another value. Invalid:
  // each rank has its own. For kept gradients of parameters the parameter's placement decides instead.
  GroupId summed_over = {};
  // Of rows that ranks exchange, and of gathered parameters: the group; and the rows for (or from) each peer.
  GroupId exchanged_over = {};
  ValueId counts = {};
  bool given_by_host = false;     // of a step value: written by the host before the step, not by a node
  bool read_by_host = false;      // after the step, so no node needs to read it
  bool each_micro_batch = false;  // of a partial gradient: one per micro-batch, not one per step
  int part = 0;           // a rank's part of a divided tensor, after which division, 1 or 2 (Module::shards); 0: whole
  std::int64_t room = 0;  // elements of its memory, where these are more than its shape has: all parts of a tensor
};

enum class Access : std::uint8_t { read, write, add };

struct ValueUse {
  ValueId value;
  Access access = Access::read;
};

enum class Phase : std::uint8_t {
  forward,          // of training
  backward,         // gradient of the input
  weight_gradient,  // may wait
  recompute,        // forward again, for a backward pass whose inputs were not kept; touches no statistics
  evaluate,         // forward without anything kept for a gradient
  reduce,           // once per step: gradients, the loss and the norm, summed over ranks
  update,           // once per step, after the last gradient
};
inline constexpr int phase_count = static_cast<int>(Phase::update) + 1;
std::string_view name_of(Phase phase);

// What a piece's code sees: tensors for its uses, the table, a stream.
class Run {
 public:
  virtual ~Run() = default;
  virtual Tensor operator[](ValueId value) const = 0;
  virtual Store store(ValueId value) const = 0;  // of an `add`: whether this contribution is the first
  const Operations& ops() const { return *operations_; }
  Stream& stream() const { return *stream_; }

 protected:
  const Operations* operations_ = nullptr;
  Stream* stream_ = nullptr;
};

// Nodes that communicate do nothing else.
enum class CollectiveKind : std::uint8_t {
  all_to_all,
  all_gather,
  reduce_scatter,
  all_reduce,
  broadcast,
  send,  // to one peer, which has the matching receive
  receive,
  to_next,      // every rank to the one after it in the group, the last to the first: as much as it gets
  to_previous,  // the other way round
  barrier,      // carries nothing
};
inline constexpr int collective_kind_count = static_cast<int>(CollectiveKind::barrier) + 1;
std::string_view name_of(CollectiveKind kind);
inline bool is_transfer(CollectiveKind kind) { return kind == CollectiveKind::send || kind == CollectiveKind::receive; }
struct Collective {
  CollectiveKind kind = CollectiveKind::all_to_all;
  GroupId group;
  ValueId send, receive;  // all_reduce: the same value, summed in place, or two of one shape
  // all_to_all: rows of `send` for each peer and rows of `receive` from each, i32 [peers, n], summed over n, in device
  // memory. Absent: equal parts.
  ValueId send_counts, receive_counts;
};

struct PieceCode {
  std::vector<ValueUse> uses;
  std::function<void(const Run&)> run;  // arithmetic, or
  std::vector<Collective> collectives;  // communication, in this order; neither: the piece has no such phase
  explicit operator bool() const { return static_cast<bool>(run) || !collectives.empty(); }
};

// A queue of nodes on a rank; a stream or a thread. Lanes that communicate carry no arithmetic, but for adding up what
// they have reduced. Between stages there are four, so that no transfer waits for one of another direction: activations
// that arrive (pipe_in) and leave (pipe_out), their gradients that arrive (back_in) and leave (back_out). What stages add up
// has a lane of its own (stage_sums): it waits for the slowest stage, and nothing else should.
enum class Lane : std::uint8_t {
  compute,
  exchange,
  tensor,
  gather,
  reduce,
  pipe_in,
  pipe_out,
  back_in,
  back_out,
  stage_sums,
  update
};
inline constexpr int lane_count = static_cast<int>(Lane::update) + 1;
std::string_view name_of(Lane lane);
// What leaves on one lane of a rank arrives on another lane of the other: the lane by which both know it.
constexpr Lane meeting_lane(Lane lane) {
  return lane == Lane::pipe_out ? Lane::pipe_in : lane == Lane::back_out ? Lane::back_in : lane;
}

// Which part of the main part or of an MTP depth a piece belongs to. layers: includes everything before them. head: reads what
// the final norm wrote; head_part: what such a piece has made of it.
enum class Section : std::uint8_t { layers, final_norm, head, head_part };

// An item of the pattern, by its number in its segment or MTP depth.
struct ItemPlace {
  int part = -1;  // segments of the main part, then MTP depths; -1: not of an item, as embedding, final norm and head
  int number = -1;
};

// Where a piece is in the model: also its name in plans, traces and errors.
struct PiecePlace {
  int depth = 0;      // 0: main part; d: MTP depth d
  int physical = -1;  // symbol index in its part; -1: embedding, final norm, head
  int unit = 0;       // numbered over the whole module; the scheduler pairs units
  std::string layer;  // "main.3*", "embedding", "head"
  std::string piece;  // "mix", "route", "experts", ...
  Section section = Section::layers;
  ItemPlace item = {};
  int chunk = 0;  // of Module::chunks
};

// Parts of layers that a step can compute again instead of keeping them, by Megatron's names. A set has bit 1 << module.
enum class RecomputeModule : std::uint8_t {
  core_attn,       // of `*`, `+`, `D`: attention itself
  moe_act,         // of `E`: the activation of the experts
  layernorm,       // of all: the norm before the layer
  mla_up_proj,     // of `+`, `D`: queries, keys and values from their latents, with rotation
  mlp,             // of `-`: all but its norm
  moe,             // of `E`: all but its norm
  shared_experts,  // of `E`
  gdn_norm_out,    // of `G`: the norm of the heads and their gate
};
inline constexpr int recompute_module_count = static_cast<int>(RecomputeModule::gdn_norm_out) + 1;
std::string_view name_of(RecomputeModule module);
using RecomputeModules = std::uint16_t;
constexpr RecomputeModules set_of(std::initializer_list<RecomputeModule> modules) {
  unsigned set = 0;
  for (const RecomputeModule module : modules) set |= 1u << static_cast<unsigned>(module);
  return static_cast<RecomputeModules>(set);
}

// Part of a piece's forward: it can run again without the rest, from what it reads. Without statistics.
struct PiecePart {
  std::string name;
  RecomputeModules modules = 0;  // that it belongs to
  PieceCode code;                // its uses are among those of forward
};

struct Piece {
  PiecePlace place;
  Lane lane = Lane::compute;
  bool only_in_training = false;  // skipped in evaluation and when computing again
  PieceCode forward, backward, weight_gradient;
  PieceCode evaluate;            // absent: the same as forward; also computes again what forward has written
  PieceCode update;              // of Module::updates
  std::vector<PiecePart> parts;  // all of forward, in order; empty: it runs again only as a whole
  RecomputeModules modules = 0;  // of a piece without parts
  const PieceCode& code(Phase phase) const;
  // part -1: of the whole piece.
  const PieceCode& code(Phase phase, int part) const {
    return part < 0 ? code(phase) : parts[static_cast<std::size_t>(part)].code;
  }
};

// The optimizer's state for one parameter tensor; absent where the optimizer keeps no such thing. remainder: for bf16
// weights, the lower bits of the trained floats (split_float); absent for other weights.
struct ParameterStates {
  ValueId m, v;      // Adam's moments
  ValueId momentum;  // SGD's
  ValueId remainder;
  std::array<ValueId, 4> all() const { return {m, v, momentum, remainder}; }
};

// A parameter tensor that is divided over ranks: cut into equal parts, of which the last ones may lie partly or wholly
// beyond its end. Rows are not cut. ParameterTensor, Module::parameter_values, gradient_values and states are those of
// this rank's part; layers use the whole tensor and add to a partial gradient of it.
struct Shard {
  GroupId over;               // invalid: the tensor is not divided
  std::int64_t elements = 0;  // of a part, the same on all ranks
  std::int64_t here = 0;      // of this rank's part, those that are elements of the tensor: arithmetic sees no others
  ValueId whole, part;
  ValueId partial_gradient, part_gradient;  // invalid: not trained
};

// The router's losses, by their column in Module::router_losses.
enum class RouterLoss : std::uint8_t { aux, sequence_aux, global_aux, z };
inline constexpr int router_loss_count = static_cast<int>(RouterLoss::z) + 1;

// A layer of experts: of the main part (depth 0) or of an MTP depth, and its symbol index there.
struct ExpertLayer {
  int depth = 0, physical = 0;
};

// A segment of the pattern on this rank: one virtual stage of the pipeline. `in` and `out` are the residual stream,
// [tokens, hidden], and d_in and d_out their gradients; invalid at the model's two ends. A segment without layers has
// the same value as both.
struct Chunk {
  int segment = 0;
  ValueId in, out, d_in, d_out;
};

// A step value whose sum over all stages is a value of its own. Where a stage computes nothing of it, the host gives
// zeros.
struct StageSum {
  ValueId here, all;
};

struct Module {
  Layout layout;  // of the ranks that run it
  std::vector<Value> values;
  std::vector<ParameterTensor> parameters;
  std::vector<Piece> pieces;   // in the order of the forward pass
  std::vector<Piece> updates;  // run once per step, in this order: clip factor, one update per unit (weft/optim)
  int units = 0;
  std::vector<Chunk> chunks;  // of this rank's stage, in the order of the forward pass; one where there are no stages
  int segments = 1;           // of the whole model
  std::vector<StageSum> stage_sums;
  // What the training loop writes and reads; logits only if requested. Of several stages, tokens and labels are invalid
  // where none of its pieces reads them, and losses are those of all stages.
  ValueId tokens, labels, loss, step_values, logits;
  ValueId update_values;  // f64 [StepValues::count]: step_values plus what the device computes; added with the updates
  // f64 [n]: sums of squares of the gradients, by row of norm_rows; added with the updates if gradients are clipped.
  // all_squares: the same over all stages; the same value where there is one.
  ValueId squares, all_squares;
  // The factor of a micro-batch's summed loss, then that of each MTP depth: an input f64 [1 + depths].
  ValueId loss_scales;
  std::vector<ValueId> mtp_losses;  // by depth, times that factor
  // Inputs i32 [T], in packed samples: the token at which a token's document begins, and a token's position. Invalid: a
  // sample is one document, and positions are counted from its beginning.
  // On several context ranks `boundaries` are of all their tokens, `positions` of this rank's and never invalid,
  // `all_positions` of all tokens where documents count their own, and `neighbour_positions` of the tokens of those that
  // exchange heads where others send each other keys.
  ValueId boundaries, positions, all_positions, neighbour_positions;
  // On several context ranks, inputs i32 by MTP depth: the tokens that a depth reads, the labels it is trained on.
  std::vector<ValueId> later_tokens, later_labels;
  std::int64_t length = 0;                 // of a sample, in tokens
  std::vector<ExpertLayer> expert_layers;  // of the whole pattern, in its order
  ValueId router_losses;                   // f64 [expert_layers, router_loss_count]; invalid: no such loss
  ValueId indexer_loss;                    // of sparse attention's indexers, if they are trained
  std::vector<ValueId> parameter_values, gradient_values;  // by TensorId; no gradient unless trained
  std::vector<ParameterStates> states;                     // by TensorId; added with the updates
  ShardingStrategy sharding = ShardingStrategy::no_shard;
  // By division, then by TensorId; empty: nothing is divided. The first divides tensors over the ranks of an instance of the
  // optimizer, the second what is left over the instances.
  std::array<std::vector<Shard>, 2> shards;

  const Value& value(ValueId id) const { return values[id.index()]; }
  bool divided() const { return !shards[0].empty() || !shards[1].empty(); }
  // One division of the tensor, 1 or 2; null: there is none.
  const Shard* shard_of(TensorId id, int division) const;
  // The tensor that layers use, of this rank's experts.
  const Value& whole(TensorId id) const;
  // Numbered as in plans: `pieces`, then `updates`.
  const Piece& piece(PieceId id) const {
    return id.index() < pieces.size() ? pieces[id.index()] : updates[id.index() - pieces.size()];
  }
};

// The first piece that uses a parameter tensor, by TensorId; invalid: none does.
std::vector<PieceId> first_uses_of_tensors(const Module& module);
// Its unit; 0: none uses it.
std::vector<int> units_of_tensors(const Module& module);
// Whose gradients are summed where in the sums of squares of the norm. Row 0: tensors that every rank has whole. Every later
// row: those divided among the ranks of one group.
struct NormRows {
  std::vector<GroupId> groups{GroupId{}};  // by row; row 0: invalid
  std::vector<std::int32_t> row_of;        // by TensorId; -1: not trained, or counted by another stage
  // Rows of the sums. Stages add up theirs, so there all have as many.
  std::int64_t count = 1;
};
NormRows norm_rows(const Module& module);

}  // namespace weft
