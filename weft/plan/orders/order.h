// The order of micro-batches on one stage of a pipeline. An order lists passes over the stage's chunks; expansion turns
// each into the nodes of its pieces.
#pragma once

#include <string_view>
#include <vector>

namespace weft {

struct ModelPass {
  enum class Direction {
    forward,
    backward,         // gradients of inputs, and of weights unless these have a pass of their own
    weight_gradients  // what the backward pass of the same chunk and micro-batch has left
  } direction = Direction::forward;
  int micro_batch = 0;
  int chunk = 0;               // of the stage: its virtual stage
  bool with_next = false;      // a forward pass that a woven plan runs together with the backward pass after it
  bool weights_later = false;  // of a backward pass: the weight gradients have a pass of their own

  bool operator==(const ModelPass&) const = default;
};
using PassOrder = std::vector<ModelPass>;

enum class OrderKind {
  automatic,    // interleaved where a stage has several chunks, else 1F1B
  one_f_one_b,  // after a warm-up, one forward and one backward pass in turn
  interleaved,  // the same with several chunks on each stage
  zero_bubble,  // 1F1B whose weight gradients run where a stage would wait
};
std::string_view name_of(OrderKind kind);

// A stage of a pipeline, and what passes through it.
struct PipelineStage {
  int stages = 1, stage = 0, chunks = 1;
  int micro_batches = 1;
  OrderKind kind = OrderKind::automatic;
  // Of interleaved: micro-batches that pass one chunk before any passes the next; 0: one per stage. If the last group would
  // have fewer than there are stages, all groups become larger instead.
  int group = 0;
  // Passes are to be run in pairs, so that forward and backward must not need each other: interleaved warms up by one
  // pass more, the others by twice as many as stages follow, and one.
  bool woven = false;
  bool weights_after_passes = false;  // a backward pass sends before it computes weight gradients
};

// UserError where the order cannot exist; it names both numbers.
PassOrder pipeline_order(const PipelineStage& stage);
// Forward passes before the first backward pass, beside the one that is paired with it.
int warm_up_passes(const PipelineStage& stage);

// Blocks of micro-batches one after another: all of a block forward, then all backward. Blocks of one: the plain order.
PassOrder block_order(int micro_batches, int block);

// The part of a step in which a stage has nothing to do, by the order's formula, where passes over a stage's chunks take
// these times (all of its chunks together): the time, not the share.
struct PassTimes {
  double forward = 1, backward = 1, weight_gradients = 1;
};
double bubble_of(const PipelineStage& stage, const PassTimes& times);

}  // namespace weft
