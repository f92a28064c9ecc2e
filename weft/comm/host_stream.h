#pragma once

#include "weft/device/device.h"

namespace weft {

// For groups over host memory, whose calls are done when they return, beside any device.
class HostStream : public Stream {
 public:
  void synchronize() override {}
};

}  // namespace weft
