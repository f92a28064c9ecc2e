// What a checkpoint may have in place of a key of megatron_keys.h: other spellings, the experts of a layer one by one or
// with rows below one another, the projections of Mamba and the gated delta net in one piece. Every key of the model and of
// the optimizer's state is looked for by itself, so that weights, biases, masters and moments may each be kept another way.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "weft/checkpoint/disk_tensor.h"

namespace weft {

class KeyVariants {
 public:
  // All keys of a model; they outlive it.
  explicit KeyVariants(const std::vector<DiskTensor>& tensors);

  using Find = std::function<const Shape*(const std::string& key)>;  // null: there is no such key
  // The keys that are there and together hold the parameters of `tensor`, one of the model's. Its own where that is there,
  // whatever its shape; empty where no form is complete.
  std::vector<DiskTensor> find(const DiskTensor& tensor, const Find& there) const;

 private:
  std::vector<DiskTensor> in_one_piece(const DiskTensor& tensor, const Find& there) const;

  struct Piece {  // a key of the model as rows of a larger one
    std::string whole;
    std::int64_t first_row = 0;
  };
  std::map<std::string, Piece> pieces_;
  std::map<std::string, std::int64_t> rows_;  // of the larger ones
};

}  // namespace weft
