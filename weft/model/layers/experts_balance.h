// What `route` does besides routing to balance the experts: capacity, losses, counts for the bias of the choice.
#pragma once

#include "weft/model/layers/experts.h"

namespace weft {

class RouterBalance {
 public:
  // scores, logits [T, E], indices, weights [T, k]: the router's output. expert_bias: of the choice; invalid: none.
  RouterBalance(ModuleBuilder& b, const ExpertsSpec& spec, ValueId scores, ValueId logits, ValueId indices,
                ValueId weights, ValueId expert_bias);

  ValueId kept() const { return kept_; }  // the choices that become rows: [T, k], -1 where dropped
  std::int64_t rows_per_expert() const { return padded_ ? capacity_ : 0; }  // 0: as many as are chosen

  // Uses of route's forward, and what it does after the router: drop choices beyond the capacity; in training, count.
  void add_forward(PieceCode& code) const;
  void add_evaluation(PieceCode& code) const;
  void drop(const Run& r) const;
  void count(const Run& r) const;
  // The statistics of all ranks, reduced between route and its backward; of tensor ranks' tokens those of all of them.
  void add_statistics(ModuleBuilder& b) const;
  void add_backward(PieceCode& code) const;
  void add_gradients(const Run& r, ValueId dlogits) const;  // of the losses, after router_backward

 private:
  struct Loss {
    double coefficient;
    ValueId counts;
    Range sequences;  // rows of counts
    RouterLoss slot;
  };
  Tensor logits(const Run& r) const;
  Tensor choices(const Run& r) const { return plain_ ? r[indices_] : Tensor{}; }

  BalanceSpec spec_;
  RouterSpec router_;
  std::int64_t experts_ = 0, batch_ = 1, capacity_ = 0;
  TensorRanks ranks_;
  Range tokens_;     // of the micro-batch, that are routed here
  Range sequences_;  // that they belong to
  bool drops_ = false, padded_ = false;
  bool plain_ = false;  // the k largest scores are the choice itself
  ValueId scores_, logits_, indices_, weights_, kept_;
  ValueId batch_counts_, sequence_counts_;  // f64 [1, E], [B, E]
  ValueId running_, before_, snapshot_;     // f64 [1, E]: of this step so far; of all ranks
  ValueId bias_counts_;                     // f64 [E]: of the whole step, in place of a gradient
  ValueId losses_, step_;
  std::int64_t row_ = 0;  // of the losses
  std::vector<Loss> balance_;
};

}  // namespace weft
