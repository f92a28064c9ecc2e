// The training loop: data, steps, validation, samples, logs.
#pragma once

#include <cstdio>
#include <functional>

#include "weft/device/device.h"
#include "weft/plan/simulate/estimate.h"
#include "weft/train/exit_signals.h"
#include "weft/train/options.h"
#include "weft/train/session.h"

namespace weft {

// What the application chooses: the only one who knows concrete devices.
struct TrainEnvironment {
  Device& device;
  Pricer pricer;
  std::FILE* out = stdout;  // of rank 0; other ranks are silent
  World* world = nullptr;   // null: one rank
  int ranks_on_device = 1;
  const ExitSignals* signals = nullptr;  // that end the run; null: they do what they always do
};

// The model of a resolved configuration: that of --hf, or the flags' with the tokenizer's vocabulary.
ModelConfig run_config(const TrainOptions& options);
// Weights of --hf, or initial ones.
void load_parameters(Session& session, const TrainOptions& options);
// Session options of a resolved configuration; `config` is the model's.
SessionOptions session_options(const TrainOptions& options, const ModelConfig& config, World* world = nullptr);

// What the environment variable WEFT_UPDATE_PROCESSORS asks for (ExecutorOptions); UserError if it is not a number.
std::optional<int> update_processors();

// Returns the exit code. RunError when the loss is not finite. With several ranks all of them call it.
int train(const TrainOptions& options, const TrainEnvironment& environment);

}  // namespace weft
