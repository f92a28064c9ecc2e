#include "weft/train/advice.h"

#include <optional>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/checkpoint/model_source.h"

namespace weft {

std::string advice_on_not_finite(const TrainOptions& options, std::int64_t iteration, std::int64_t consumed_samples) {
  const std::string& model = options.model.hf;
  try {
    if (const std::optional<std::string> tensor = model.empty() ? std::nullopt : first_not_finite(*open_model(model)))
      return fmt::format("The model in {} is damaged: weights of '{}' are not finite; get a good copy", model, *tensor);
  } catch (const UserError&) {  // it is gone by now
  }
  const std::string data = fmt::format("look at the data of samples {} to {}",
                                       consumed_samples - options.batch.global_batch_size, consumed_samples - 1);
  // The first step's numbers are the weights' as they were given.
  if (iteration == 1)
    return fmt::format("No step has changed a weight yet: {}{}", model.empty() ? "lower --init-method-std, or " : "",
                       data);
  return "Lower --lr, raise --lr-warmup-iters, or " + data;
}

}  // namespace weft
