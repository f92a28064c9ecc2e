// The concrete devices: named here and nowhere else.
#pragma once

#include <memory>
#include <string>

#include "weft/device/device.h"
#include "weft/plan/estimate.h"

namespace weft {

int cores();
std::unique_ptr<Device> make_device(const std::string& name);  // UserError for one that is not built in
// Prices pieces by a dry run on the device that counts.
Pricer counting_pricer(const Module& module);

}  // namespace weft
