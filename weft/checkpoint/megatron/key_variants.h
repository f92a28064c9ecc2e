// What a checkpoint may have in place of a key of megatron_keys.h: other spellings, the experts of a layer one by one or
// with rows below one another, the projections of Mamba and the gated delta net in one piece. Every key of the model and of
// the optimizer's state is looked for by itself, so that weights, biases, masters and moments may each be kept another way.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
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
  // Two keys that are there and could each be `tensor` as well as the other: two spellings of it, or the first experts of two
  // complete sets of single ones. A grouped tensor beside single experts is no such pair: it is the one that is read.
  std::optional<std::pair<std::string, std::string>> find_two(const DiskTensor& tensor, const Find& there) const;

  // Where the experts of `tensor` are there one by one: the key of one more than the model has.
  std::optional<std::string> find_one_too_many(const DiskTensor& tensor, const Find& there) const;

 private:
  std::vector<std::string> spellings_of(const DiskTensor& tensor) const;
  std::vector<DiskTensor> in_one_piece(const DiskTensor& tensor, const Find& there) const;

  struct Piece {  // a key of the model as rows of a larger one
    std::string whole;
    std::int64_t first_row = 0;
  };
  std::set<std::string, std::less<>> own_names_;
  std::map<std::string, Piece> pieces_;
  std::map<std::string, std::int64_t> rows_;  // of the larger ones
};

}  // namespace weft
