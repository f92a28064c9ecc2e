// The concrete devices: named here and nowhere else.
#pragma once

#include <memory>
#include <string>

#include "weft/device/device.h"
#include "weft/plan/simulate/estimate.h"
#include "weft/train/options.h"

namespace weft {

// UserError for one that is not built in; auto: cpu. place: of a rank among those of this machine; where there are
// several GPUs, ranks take them in turn.
std::unique_ptr<Device> make_device(const std::string& name, int place = 0);
// The most of this process's ranks that make_device gives the same hardware.
int ranks_on_device(const std::string& name, int ranks_here);
// Which device `auto` is for a run of weft train: cuda where there is a GPU and it can do all of it, or cpu. Where a GPU is
// passed over, `why` has the reason.
std::string choose_device(const TrainOptions& options, std::string& why);
// Prices pieces by a dry run on the device that counts.
Pricer counting_pricer();

}  // namespace weft
