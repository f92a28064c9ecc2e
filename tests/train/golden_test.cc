// Hugging Face's results, and how near we must come: norm of the difference over the norm.
#include <cmath>
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "weft/base/json.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/device/cpu/device.h"
#include "weft/train/probe.h"

namespace weft {
namespace {

struct Limits {
  double loss, logits, gradient, trajectory;
};
constexpr Limits limits_f64{1e-9, 1e-9, 1e-9, 1e-9};
constexpr Limits limits_f32{1e-5, 1e-5, 1e-4, 1e-4};

std::vector<double> doubles(const TensorEntry& entry) {
  std::vector<double> values(static_cast<std::size_t>(entry.shape.elements()));
  read_as(entry, DType::f64, values.data());
  return values;
}

double relative(const std::vector<double>& ours, const std::vector<double>& theirs) {
  EXPECT_EQ(ours.size(), theirs.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    difference += (ours[i] - theirs[i]) * (ours[i] - theirs[i]);
    norm += theirs[i] * theirs[i];
  }
  // Gradients that are zero there are zero here.
  return difference == 0 ? 0 : std::sqrt(difference) / std::sqrt(norm);
}

class Golden : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  std::filesystem::path folder() const {
    return std::filesystem::path(WEFT_SOURCE_DIR) / "tests/golden" / std::get<0>(GetParam());
  }
  DType dtype() const { return std::get<1>(GetParam()); }
  Limits limits() const { return dtype() == DType::f64 ? limits_f64 : limits_f32; }
  ProbeOptions options() const {
    ProbeOptions o;
    o.model = folder();
    o.tokens = folder() / "golden.safetensors";
    o.precision.compute = dtype();
    o.threads = 2;
    return o;
  }
};

TEST_P(Golden, loss_logits_and_every_gradient) {
  CpuDevice device;
  ProbeOptions o = options();
  o.out = std::filesystem::temp_directory_path() /
          ("weft_golden_" + std::get<0>(GetParam()) + std::string(name_of(dtype())) + ".safetensors");
  const ProbeResult result = probe(device, o);
  const Json golden = read_json(folder() / "golden.json");
  EXPECT_NEAR(result.loss / golden["loss"].get<double>(), 1, limits().loss);
  EXPECT_NEAR(result.gradient_norm / golden["grad_norm"].get<double>(), 1, limits().gradient);
  ASSERT_EQ(result.mtp_losses.size(), golden.contains("mtp_losses") ? golden["mtp_losses"].size() : 0);
  for (std::size_t d = 0; d < result.mtp_losses.size(); ++d)
    EXPECT_NEAR(result.mtp_losses[d] / golden["mtp_losses"][d].get<double>(), 1, limits().loss) << "depth " << d + 1;

  const SafetensorsFile ours(o.out), theirs(o.tokens);
  int gradients = 0;
  for (const TensorEntry& entry : theirs.entries()) {
    if (entry.name == "logits") {
      EXPECT_LT(relative(doubles(ours.at("logits")), doubles(entry)), limits().logits);
    }
    if (!entry.name.starts_with("grad.")) continue;
    ++gradients;
    EXPECT_LT(relative(doubles(ours.at(entry.name)), doubles(entry)), limits().gradient) << entry.name;
  }
  EXPECT_EQ(ours.entries().size(), static_cast<std::size_t>(gradients) + 1)
      << "gradients that Hugging Face does not have";
  std::filesystem::remove(o.out);
}

TEST_P(Golden, trajectory_of_six_steps) {
  CpuDevice device;
  const Json golden = read_json(folder() / "golden.json")["trajectory"];
  TrajectoryOptions t;
  t.optimizer.beta1 = golden["betas"][0];
  t.optimizer.beta2 = golden["betas"][1];
  t.optimizer.eps = golden["eps"];
  t.optimizer.clip = golden["clip_grad"];
  t.optimizer.decay_all = true;
  t.learning_rate = golden["lr"];
  t.weight_decay = golden["weight_decay"];
  const TrajectoryResult result = probe_trajectory(device, options(), t);
  ASSERT_EQ(result.losses.size(), golden["losses"].size());
  for (std::size_t i = 0; i < result.losses.size(); ++i) {
    EXPECT_NEAR(result.losses[i] / golden["losses"][i].get<double>(), 1, limits().trajectory) << "step " << i;
    const std::size_t depths = golden.contains("mtp_losses") ? golden["mtp_losses"][i].size() : 0;
    for (std::size_t d = 0; d < depths; ++d)
      EXPECT_NEAR(result.mtp_losses.at(i).at(d) / golden["mtp_losses"][i][d].get<double>(), 1, limits().trajectory)
          << "step " << i << " depth " << d + 1;
    EXPECT_NEAR(result.gradient_norms[i] / golden["grad_norms"][i].get<double>(), 1, limits().gradient) << "step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Golden,
                         testing::Combine(testing::Values("llama", "llama_b", "mixtral", "mixtral_b", "qwen3_moe",
                                                          "qwen3_moe_b", "gpt_oss", "deepseek_v3", "deepseek_v3_b",
                                                          "deepseek_v3_mtp", "deepseek_v32", "mamba2", "nemotron_h",
                                                          "nemotron_h_moe", "qwen3_next"),
                                          testing::Values(DType::f64, DType::f32)),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) + "_" + std::string(name_of(std::get<1>(tested.param)));
                         });

}  // namespace
}  // namespace weft
