// Forward and backward of a model on given tokens: what golden results are compared with.
#pragma once

#include <filesystem>
#include <vector>

#include "weft/checkpoint/hugging_face.h"
#include "weft/device/device.h"
#include "weft/train/session.h"

namespace weft {

struct ProbeOptions {
  std::filesystem::path model;   // a Hugging Face folder, or a Weft checkpoint
  std::filesystem::path tokens;  // safetensors: input_ids, labels [B, S]; trajectory.tokens [steps, B, S + 1]
  std::filesystem::path out;     // "": nothing is written
  Precision precision;
  int threads = 1;
  double mtp_loss_factor = 0.1;
};
struct ProbeResult {
  double loss = 0, gradient_norm = 0;
  std::vector<double> mtp_losses = {};  // gradients are those of the sum with the factor
};
// Writes logits [B, S, vocabulary] and grad.NAME for every weight under its name on disk to `out`.
ProbeResult probe(Device& device, const ProbeOptions& options);

struct TrajectoryOptions {
  OptimizerSpec optimizer;
  double learning_rate = 1e-3, weight_decay = 0.01;  // constant
};
struct TrajectoryResult {
  std::vector<double> losses, gradient_norms;   // before each step; no norms without clipping
  std::vector<std::vector<double>> mtp_losses;  // of each step
};
// Trains on trajectory.tokens, a step for each of its entries.
TrajectoryResult probe_trajectory(Device& device, const ProbeOptions& options, const TrajectoryOptions& trajectory);

}  // namespace weft
