// Runs an operation on the GPU, twice, and also on the CPU in double: the two runs must agree in every bit, and
// with the CPU within bounds that follow from the data type.
#pragma once

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/device/harness.h"
#include "weft/device/cpu/device.h"
#include "weft/device/cuda_device.h"

namespace weft {

class Beside : public ::testing::Test {
 protected:
  static void SetUpTestSuite();  // one GPU device for all tests
  using At = std::function<Tensor(const HostTensor&)>;
  // run(table, stream, at): at(x) is the tensor x where the operation runs; f32 and bf16 are f64 on the CPU.
  using RunOn = std::function<void(const Operations&, Stream&, const At&)>;
  // repeatable: the two runs on the GPU must agree in every bit.
  void run(const RunOn& on, bool repeatable = true);

  const HostTensor& got(const HostTensor& x) const { return got_.at(&x); }
  std::vector<double> want(const HostTensor& x) const { return want_.at(&x).values(); }
  // A sum of `length` terms of absolute sum `magnitudes` (one per element, or empty: the largest result), of which each
  // was rounded `roundings` times to bf16 on the way.
  void expect(const HostTensor& x, std::int64_t length, const std::vector<double>& magnitudes = {},
              double roundings = 0) const;
  void expect_same(const HostTensor& x) const;  // integers, copies
  static Device& gpu();

 private:
  using Copies = std::map<const HostTensor*, HostTensor>;
  Copies run_on_gpu(const RunOn& on);
  Copies got_, want_;
};

const DType model_types[] = {DType::f32, DType::bf16};

// Under compute-sanitizer (tests/device/cuda/sanitize.sh): then the same kernels of ours run on less.
inline bool sanitizing() { return std::getenv("WEFT_SANITIZER") != nullptr; }

}  // namespace weft
