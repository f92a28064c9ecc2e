#pragma once

#include "weft/device/device.h"

namespace weft {

// The stream for groups over host memory, whose calls are finished when they return.
class HostStream : public Stream {
 public:
  void synchronize() override {}
};

}  // namespace weft
