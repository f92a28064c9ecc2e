// Which rank answers for which box of each parameter. It follows from the layout: no rank has to be asked.
#pragma once

#include <map>
#include <vector>

#include "weft/train/session.h"

namespace weft {

struct OwnedPart {
  RankId rank;
  TensorId tensor;  // there
  ParameterPart part;
  bool changes = true;  // steps change it
};

class ParameterOwners {
 public:
  explicit ParameterOwners(const SessionOptions& options);
  // The boxes of a parameter, each from one rank; together they are all of it.
  const std::vector<OwnedPart>& of(const ParameterIdentity& identity) const;

 private:
  std::map<ParameterIdentity, std::vector<OwnedPart>> parts_;
};

}  // namespace weft
