// Compares what two runs in different layouts have computed.
#pragma once

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "tests/execute/ranks.h"

namespace weft {

// limit: relative, of every loss and norm, and of the norm of the difference of every parameter.
inline void expect_near(const RankRun& a, const RankRun& b, double limit, const std::string& what) {
  ASSERT_EQ(a.losses.size(), b.losses.size()) << what;
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    EXPECT_NEAR(a.losses[i], b.losses[i], limit * std::abs(b.losses[i])) << what;
  for (std::size_t i = 0; i < a.norms.size(); ++i) EXPECT_NEAR(a.norms[i] / b.norms[i], 1, limit) << what;
  const auto wanted = b.weights();
  ASSERT_EQ(a.parameters.size(), b.parameters.size()) << what;
  for (const auto& [who, values] : a.weights()) {
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(values[i] - wanted.at(who)[i], 2);
      norm += std::pow(values[i], 2);
    }
    EXPECT_LE(std::sqrt(difference), limit * std::sqrt(norm)) << what << ": " << to_text(who);
  }
}

}  // namespace weft
