// visible_keys: the range of a block's keys that each query sees. Both lists of places ascend, so it only moves forward.
#include <algorithm>

#include "weft/device/argument_checks_block.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/operations/attention_block.h"

namespace weft::WEFT_ISA {

void visible_keys(Stream&, const VisibleKeys& op) {
  check_arguments("visible_keys", op);
  const std::int32_t *places = op.places.as<std::int32_t>(), *keys = op.key_places.as<std::int32_t>(),
                     *boundaries = optional<const std::int32_t>(op.boundaries);
  const std::int32_t* const keys_end = keys + op.key_places.shape.elements();
  for (std::int64_t i = 0; i < op.places.shape.elements(); ++i) {
    const std::int64_t t = places[i], begin = boundaries != nullptr ? boundaries[t] : t - t % op.length;
    const std::int64_t least = op.window > 0 ? std::max(begin, t - op.window + 1) : begin;
    const std::int32_t* const first = std::lower_bound(keys, keys_end, least);
    op.first.as<std::int32_t>()[i] = static_cast<std::int32_t>(first - keys);
    op.end.as<std::int32_t>()[i] = static_cast<std::int32_t>(std::upper_bound(first, keys_end, t) - keys);
  }
}

}  // namespace weft::WEFT_ISA
