// Groups over the real NCCL, between thread ranks that share one GPU (tests/comm/nccl/nccl_test.cc has a fake one).
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "tests/comm/collective_checks.h"
#include "tests/comm/ranks.h"
#include "tests/device/cuda/shared_gpu.h"
#include "weft/comm/local/cluster.h"
#include "weft/comm/nccl_world.h"
#include "weft/device/cuda_device.h"

namespace weft {
namespace {

constexpr double timeout = 20;  // seconds, so that what hangs does not hang for long

class CudaCollectives : public testing::TestWithParam<int> {
 protected:
  using Hashes = std::vector<std::uint64_t>;
  static Hashes hashes(const std::function<std::uint64_t(World&)>& check) {
    Hashes all(static_cast<std::size_t>(GetParam()));
    LocalCluster(GetParam(), {.timeout = timeout}).run([&](World& world) { all[world.rank().index()] = check(world); });
    return all;
  }
};

TEST_P(CudaCollectives, OfThreadsHaveTheBitsOfTheHost) {
  const Hashes on_host = hashes([](World& world) { return check_collectives(world); });
  EXPECT_EQ(on_host, hashes([](World& world) {
              const std::unique_ptr<Device> device = make_cuda_device();
              return check_collectives(world, device.get());
            }));
}

TEST_P(CudaCollectives, OverNcclHaveTheBitsOfTheHost) {
  if (const std::string why = why_no_shared_gpu(); !why.empty()) GTEST_SKIP() << why;
  const Hashes on_host = hashes([](World& world) { return check_collectives(world); });
  EXPECT_EQ(on_host, hashes([](World& base) {
              const std::unique_ptr<Device> device = make_cuda_device();
              const std::unique_ptr<World> world = make_nccl_world(base);
              return check_collectives(*world, device.get());
            }));
}
INSTANTIATE_TEST_SUITE_P(OnRanks, CudaCollectives, testing::Values(2, 4), testing::PrintToStringParamName());

// Rank 1 does not come: kernels of the others spin on the GPU until the watch ends them.
std::string end_of_a_run(bool fails) {
  try {
    LocalCluster(2, {.timeout = timeout}).run([&](World& base) {
      const std::unique_ptr<Device> device = make_cuda_device();
      const std::unique_ptr<World> world = make_nccl_world(base);
      const std::unique_ptr<Stream> stream = device->make_stream(1), second = device->make_stream(1);
      const std::unique_ptr<Memory> memory = device->allocate(2 * 4096);
      const Tensor a(memory->data(), DType::f32, Shape{1024}), b(memory->data() + 4096, DType::f32, Shape{1024});
      const auto one = world->make_group(ranks_below(2), "one", device.get());
      const auto two = world->make_group(ranks_below(2), "two", device.get());
      one->all_reduce(*stream, a, a, Reduction::sum);
      one->barrier(*stream);
      world->set_timeout(0.5);
      if (base.rank().value == 1) {
        if (fails) throw UserError("the loss is a potato");
        for (int i = 0; i < 1000; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
          world->throw_if_ended();
        }
      }
      for (int i = 0; i < 5; ++i) {
        one->all_reduce(*stream, a, a, Reduction::sum);
        two->all_reduce(*second, b, b, Reduction::sum);
      }
      second->synchronize();
      stream->synchronize();
      world->throw_if_ended();
    });
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(CudaNccl, ARankThatDoesNotComeEndsTheRunAtTheTimeout) {
  if (const std::string why = why_no_shared_gpu(); !why.empty()) GTEST_SKIP() << why;
  const std::string report = end_of_a_run(false);
  EXPECT_NE(
      report.find("for rank 1 (the timeout is 0.5 s). What each rank is doing:\n  rank 0: on the device: all_reduce"),
      std::string::npos)
      << report;
}

TEST(CudaNccl, ARankThatFailsEndsTheOthersKernels) {
  if (const std::string why = why_no_shared_gpu(); !why.empty()) GTEST_SKIP() << why;
  EXPECT_EQ(end_of_a_run(true), "the loss is a potato");
}

}  // namespace
}  // namespace weft
