// Runs an operation on every instruction set with one and with two threads.
#pragma once

#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "tests/device/harness.h"

namespace weft {

inline const DType storages[] = {DType::f32, DType::f64, DType::bf16};

// run(device) returns the results; two threads must give the bits of one. check(results) is called once for each
// instruction set.
inline void everywhere(const std::function<std::vector<HostTensor>(TestDevice&)>& run,
                       const std::function<void(const std::vector<HostTensor>&)>& check) {
  for (Isa isa : supported_isas()) {
    TestDevice one(1, isa), two(2, isa);
    SCOPED_TRACE(one.text());
    const std::vector<HostTensor> results = run(one), parallel = run(two);
    ASSERT_EQ(results.size(), parallel.size());
    for (std::size_t i = 0; i < results.size(); ++i)
      EXPECT_TRUE(results[i].same_bits(parallel[i])) << "result " << i << " depends on the number of threads";
    check(results);
  }
}

}  // namespace weft
