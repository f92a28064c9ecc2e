// Remarks losses that jump, which often begin what ends as NaN.
#pragma once

#include <string>

namespace weft {

class LossWatch {
 public:
  // Of every step whose loss is finite, one after another. Returns a remark for the log, "" most often: once for a loss of
  // more than twice the mean of late, and more than 1 above it.
  std::string look_at(double loss);

 private:
  double mean_ = 0;  // of about the last ten losses
  bool known_ = false, high_ = false;
};

}  // namespace weft
