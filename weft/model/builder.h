// Makes a Module layer by layer: values, parameters, pieces, each named after its place.
#pragma once

#include <optional>
#include <string>

#include "weft/model/config.h"
#include "weft/model/context_ranks.h"
#include "weft/model/module.h"
#include "weft/model/tensor_ranks.h"
#include "weft/pattern/pattern.h"

namespace weft {

// How documents share a sample.
struct Packing {
  bool separate = false;         // no attention, state or convolution reaches from one into another
  bool reset_positions = false;  // positions are counted from a document's beginning
};

// What the layers must know of a run beside the model itself.
struct ModuleOptions {
  Precision precision;
  std::int64_t batch = 1, length = 1;           // of one micro-batch
  std::int64_t row_alignment = 1;               // of an expert's rows; kernels of some devices want more
  std::int64_t logits_slice_bytes = 128 << 20;  // the head works on slices of tokens whose logits fit in this
  Packing packing;
  bool keep_logits = false;        // evaluate writes Module::logits
  Layout layout;                   // of the ranks; tells which stage and which experts are here
  SplitOptions split;              // of the layers over the layout's stages, which it need not count
  bool sequence_parallel = false;  // tensor ranks divide the tokens of the residual stream
  // Of attention on several context ranks, by layer: symbols of the main part. One: of all layers. MTP depths have the last.
  std::vector<ContextTransfer> context_transfers{ContextTransfer::p2p};
  bool repeatable_attention = true;  // of AttentionBackward
  ShardingStrategy sharding = ShardingStrategy::no_shard;
  bool shard_over_instances = false;  // of the optimizer (Layout::instances), what each of them divides
};

struct ParameterValues {
  ValueId value, gradient;
};

class ModuleBuilder {
 public:
  ModuleBuilder(const ModelConfig& config, const ModuleOptions& options);

  const ModelConfig& config() const { return config_; }
  const ModuleOptions& options() const { return options_; }
  // Of a micro-batch, the tokens that this context rank has.
  std::int64_t tokens() const { return all_tokens() / context_ranks_.size; }
  std::int64_t all_tokens() const { return options_.batch * options_.length; }
  const ContextRanks& context_ranks() const { return context_ranks_; }
  ContextTransfer context_transfer() const;  // of this layer
  const TensorRanks& tensor_ranks() const { return tensor_ranks_; }
  // Of the residual stream, the tokens that are here; and those of them of which this rank adds up the gradients of
  // parameters that all tensor ranks hold, so that the sum over all ranks counts every token once.
  std::int64_t stream_tokens() const { return tensor_ranks_.sequence ? tokens() / tensor_ranks_.size : tokens(); }
  // The group that sums over tokens are over where tensor ranks add up different ones; invalid: this rank has all.
  GroupId summed_over_tokens() const;
  const TensorRanks& expert_tensor_ranks() const { return expert_tensor_ranks_; }
  Range counted_tokens() const {
    return tensor_ranks_.sequence ? Range{0, stream_tokens()} : tensor_ranks_.part_of(tokens());
  }
  DType compute() const { return options_.precision.compute; }
  DType accumulate() const { return options_.precision.accumulate(); }
  double residual_std() const { return residual_std_; }  // of matrices that write to the residual stream

  // Everything made from here on is in this place.
  void enter(int depth, int physical, std::string layer, ItemPlace item = {});
  void next_unit() { ++module_.units; }
  void begin_chunk(int segment) { module_.chunks.push_back({segment, {}, {}, {}, {}}); }
  const std::string& layer() const { return place_.layer; }

  // The group that losses and statistics of tokens are summed over; invalid where one rank has all tokens.
  GroupId summed_over_data() const;

  ValueId activation(std::string name, DType dtype, const Shape& shape);
  ValueId scratch(std::string name, DType dtype, const Shape& shape);
  ValueId value(Value value);
  // The gradient of an activation, of the same shape and dtype; made at the first call.
  ValueId gradient_of(ValueId activation);
  // The same name gives the same constant: layers share their tables.
  ValueId constant(const std::string& name, const Shape& shape, std::function<void(double*)> fill);
  // i32: row numbers, positions.
  ValueId constant_of_ints(const std::string& name, const std::vector<std::int64_t>& numbers);
  // A sum over the micro-batches of a step so far; the first of a block takes what was `before` it into its sum.
  ValueId running(std::string name, DType dtype, const Shape& shape);
  ValueId before(ValueId running);
  ValueId router_losses();          // Module::router_losses, made at the first call
  std::int64_t router_row() const;  // of this layer in them
  // Lets `rate` change a frozen parameter [E] once a step, by how often experts were chosen; returns the value of those
  // counts, f64 [E], which stands in the place of its gradient.
  ValueId balance_parameter(ValueId parameter, double rate);
  // Parts are given with role, expert and shape; their places in the tensor are filled in here.
  ParameterValues parameter(const std::string& name, const Shape& shape, std::vector<ParameterPart> parts);
  // One that no gradient reaches and no update changes; without a dtype in the accumulation dtype.
  ValueId frozen_parameter(const std::string& name, const Shape& shape, std::vector<ParameterPart> parts,
                           std::optional<DType> dtype = {});
  // In the accumulation dtype whatever the model computes in.
  ParameterValues precise_parameter(const std::string& name, const Shape& shape, std::vector<ParameterPart> parts);
  // Its gradient stays in the accumulation dtype, also where those of other matrices are kept in bf16: no product makes it.
  void keep_gradient_precise(ParameterValues values);
  // A weight of RMS norm: ones, or zeros where norms are zero-centred.
  ParameterValues norm_weight(const std::string& name, Role role, std::int64_t width);
  ParameterPart part(Role role, const Shape& shape, Init init, int expert = -1) const;
  // This rank's part of one that tensor ranks divide, by the indices of `dim`.
  ParameterPart tensor_part(Role role, const Shape& shape, int dim, Init init) const;
  // Of an expert's, that expert tensor ranks divide.
  ParameterPart expert_part(Role role, const Shape& shape, int dim, Init init, int expert) const;
  Init matrix_init() const { return {Init::Kind::normal, config_.init_std}; }
  Init residual_init() const { return {Init::Kind::normal, residual_std_}; }
  ParameterTensor& tensor(ParameterValues values);

  Piece& piece(const std::string& name, Lane lane = Lane::compute);

  Module& module() { return module_; }
  Module take() { return std::move(module_); }

 private:
  ValueId add_tensor(const std::string& name, const Shape& shape, DType dtype, std::vector<ParameterPart> parts);

  ModelConfig config_;
  ModuleOptions options_;
  Module module_;
  PiecePlace place_;
  TensorRanks tensor_ranks_, expert_tensor_ranks_;
  ContextRanks context_ranks_;
  double residual_std_;
  std::vector<std::pair<ValueId, ValueId>> gradients_;
  std::vector<std::pair<std::string, ValueId>> constants_;
};

}  // namespace weft
