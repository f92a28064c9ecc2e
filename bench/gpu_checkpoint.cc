// An asynchronous save beside the steps of a GPU, one rank. A line of JSON per round:
//  - copy_seconds: between two steps, the state to the host's memory. The step after it waits for this alone.
//  - step, step_beside: median seconds of a step alone, and of one while the save is being written; slower: by how much.
//    The goal is at most 0.05.
//
//   ./run bench gpu_checkpoint [FOLDER [LAYERS [ROUNDS]]]      6 layers: about 6 GB of state
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "weft/base/random.h"
#include "weft/device/cuda_device.h"
#include "weft/train/checkpoint_saver.h"

namespace weft {
namespace {

constexpr std::int64_t batch = 2, length = 4096, vocabulary = 32768;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

SessionOptions session_options(int layers) {
  SessionOptions o;
  for (int i = 0; i < layers; ++i) o.config.pattern += "[*-]";
  o.config.hidden = 2048;
  o.config.vocabulary = vocabulary;
  o.config.attention = {.heads = 16, .kv_heads = 4, .head_dim = 128};
  o.config.mlp.ffn = 8192;
  o.precision.compute = DType::bf16;
  o.batch = batch;
  o.length = length;
  o.plan.micro_batches = 1;
  o.ranks.parallel = true;
  return o;
}

MicroBatch batch_of(std::int64_t step) {
  MicroBatch b;
  b.batch = batch;
  b.length = length;
  const std::uint64_t key = random_key(static_cast<std::uint64_t>(step), "gpu_checkpoint");
  for (std::uint64_t i = 0; i < batch * length; ++i) {
    b.tokens.push_back(static_cast<std::int32_t>(random_below(key, 2 * i, vocabulary)));
    b.labels.push_back(static_cast<std::int32_t>(random_below(key, 2 * i + 1, vocabulary)));
  }
  return b;
}

void measure(const std::filesystem::path& folder, int layers, int rounds) {
  const std::filesystem::path dir = folder / "checkpoint-bench";
  std::filesystem::remove_all(dir);
  const std::unique_ptr<Device> device = make_cuda_device();
  Session session(*device, session_options(layers));
  session.initialise_parameters(5);
  std::vector<std::vector<MicroBatch>> batches;
  for (int i = 0; i < 4; ++i) batches.push_back({batch_of(i)});
  auto timed_step = [&, number = std::size_t{0}]() mutable {
    const double begin = now();
    session.step(batches[number++ % batches.size()], 1e-5, 0.1);
    return now() - begin;
  };
  for (int i = 0; i < 5; ++i) timed_step();  // records the graph, warms up
  CheckpointSaver saver(session, {.dir = dir, .keep = 1});
  for (int round = 1; round <= rounds; ++round) {
    std::vector<double> alone, beside;
    for (int i = 0; i < 20; ++i) alone.push_back(timed_step());
    double begin = now();
    saver.begin({round, round, round}, "{}");
    const double copy = now() - begin;
    begin = now();
    do beside.push_back(timed_step());
    while (!saver.poll());
    const double writing = now() - begin;
    fmt::print(
        "{{\"case\":\"gpu_beside\",\"gib\":{:.2f},\"copy_seconds\":{:.3f},\"writing_seconds\":{:.3f},\"steps\":{},"
        "\"step\":{:.5f},\"step_beside\":{:.5f},\"slower\":{:.4f}}}\n",
        static_cast<double>(saver.bytes()) / 0x1p30, copy, writing, beside.size(), median(alone), median(beside),
        median(beside) / median(alone) - 1);
    std::fflush(stdout);
  }
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    weft::measure(argc > 1 ? argv[1] : ".", argc > 2 ? std::atoi(argv[2]) : 6, argc > 3 ? std::atoi(argv[3]) : 3);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
