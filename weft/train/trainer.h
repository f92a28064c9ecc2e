// The training loop: data, steps, validation, samples, logs.
#pragma once

#include <cstdio>
#include <functional>

#include "weft/device/device.h"
#include "weft/plan/estimate.h"
#include "weft/train/options.h"
#include "weft/train/session.h"

namespace weft {

// What the application chooses: the only one who knows concrete devices.
struct TrainEnvironment {
  Device& device;
  std::function<Pricer(const Module&)> pricer;
  std::FILE* out = stdout;
};

// The model of a resolved configuration: that of --hf, or the flags' with the tokenizer's vocabulary.
ModelConfig run_config(const TrainOptions& options);
// Session options of a resolved configuration; `config` is the model's.
SessionOptions session_options(const TrainOptions& options, const ModelConfig& config);

// Returns the exit code. RunError when the loss is not finite.
int train(const TrainOptions& options, const TrainEnvironment& environment);

}  // namespace weft
