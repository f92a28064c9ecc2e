// A CPU stream: operations run at once, on the calling thread and its team.
#pragma once

#include "weft/device/cpu/team.h"
#include "weft/device/device.h"

namespace weft {

class CpuStream : public Stream {
 public:
  explicit CpuStream(int threads) : team_(threads) {}
  void synchronize() override {}
  Team& team() { return team_; }

 private:
  Team team_;
};

inline Team& team_of(Stream& stream) { return static_cast<CpuStream&>(stream).team(); }

}  // namespace weft
