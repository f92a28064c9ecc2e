// bf16 models train floats that are kept as a weight and a remainder: whatever way such a state takes, its bits stay.
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "tests/execute/parameter_numbers.h"
#include "tests/execute/ranks.h"
#include "weft/checkpoint/stored_type.h"

namespace weft {
namespace {

SessionOptions options_of(const RankCase& c, bool updates = true) {
  SessionOptions o;
  o.config = c.config;
  o.precision.compute = DType::bf16;
  o.batch = c.batch;
  o.length = c.length;
  o.plan.kind = updates ? PlanKind::train : PlanKind::gradients;
  return o;
}

// A CPU's memory can be looked at.
std::vector<std::byte> bytes_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  std::memcpy(bytes.data(), tensor.data, bytes.size());
  return bytes;
}

struct State {
  std::vector<std::vector<std::byte>> weights, remainders;  // by tensor
  LogicalParameters parameters;
};

State state_of(Session& session) {
  State state;
  const Module& m = session.module();
  for (std::size_t i = 0; i < m.parameters.size(); ++i) {
    state.weights.push_back(bytes_of(session.storage().weight(TensorId(static_cast<std::int64_t>(i)))));
    const bool split = !m.states.empty() && m.states[i].remainder.valid();
    state.remainders.push_back(split ? bytes_of(session.storage().state(m.states[i].remainder))
                                     : std::vector<std::byte>{});
  }
  session.parameters().each(Content::weight, [&](const ParameterPart& part, const HostTensor& tensor) {
    EXPECT_TRUE(state.parameters.add(part, tensor)) << to_text(part.identity);
  });
  return state;
}

void set(Session& session, const State& state) {
  session.set_parameters(
      [&](const ParameterPart& part, HostTensor& tensor) { state.parameters.copy_to(part, tensor); });
}

TEST(SplitWeights, AStateThatIsReadAndSetHasTheSameBits) {
  const RankCase c = small_case("M[*E]-");
  CpuDevice device;
  Session trained(device, options_of(c));
  trained.initialise_parameters(5);
  for (int step = 0; step < 4; ++step) trained.step(std::vector{batch_of(c, step, 0)}, 1e-2, 0.1);
  const State state = state_of(trained);
  Session other(device, options_of(c));
  other.initialise_parameters(6);
  set(other, state);
  const State copy = state_of(other);
  EXPECT_EQ(copy.weights, state.weights);
  EXPECT_EQ(copy.remainders, state.remainders);
  EXPECT_TRUE(copy.parameters == state.parameters);

  // A session that only reads weights, and a bf16 file, have the weights that training computed with.
  Session reading(device, options_of(c, false));
  set(reading, state);
  EXPECT_EQ(state_of(reading).weights, state.weights);
  std::size_t split = 0, whole = 0;
  const Module& m = trained.module();
  for (std::size_t i = 0; i < m.parameters.size(); ++i) {
    const bool narrow = m.value(m.parameter_values[i]).dtype == DType::bf16;
    ++(narrow ? split : whole);
    EXPECT_EQ(!state.remainders[i].empty(), narrow) << m.parameters[i].name;
    if (!narrow) continue;
    const HostTensor values = trained.parameters().read(TensorId(static_cast<std::int64_t>(i)), Content::weight);
    std::vector<std::byte> stored(static_cast<std::size_t>(2 * values.elements()));
    store(values.dtype, values.bytes.data(), StoredType::bf16, stored.data(), values.elements());
    EXPECT_EQ(stored, state.weights[i]) << m.parameters[i].name;
  }
  EXPECT_GT(split, 8u);
  EXPECT_GT(whole, 2u) << "the router, A_log, D, dt_bias";
}

TEST(SplitWeights, EveryNumberIsKept) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> numbers = {0.0f,
                                      -0.0f,
                                      1.0f,
                                      -3.14159274f,
                                      std::bit_cast<float>(0x3f808000u),  // a half
                                      std::bit_cast<float>(0xbf818000u),
                                      std::bit_cast<float>(0x3fffffffu),
                                      std::bit_cast<float>(1u),  // subnormal
                                      std::bit_cast<float>(0x80008000u),
                                      std::numeric_limits<float>::max(),  // its weight is infinite
                                      std::numeric_limits<float>::lowest(),
                                      infinity,
                                      -infinity,
                                      std::numeric_limits<float>::quiet_NaN()};
  CpuDevice device;
  Session session(device, options_of(small_case("M[*E]-")));
  session.set_parameters([&](const ParameterPart& part, HostTensor& tensor) {
    set_numbers(part, tensor, [&](std::int64_t i) {
      return static_cast<double>(numbers[static_cast<std::size_t>(i) % numbers.size()]);
    });
  });
  each_numbers(session, Content::weight, [&](const ParameterPart& part, const std::vector<double>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto wanted = static_cast<double>(numbers[i % numbers.size()]);
      if (std::isnan(wanted))
        ASSERT_TRUE(std::isnan(values[i])) << to_text(part.identity);
      else
        ASSERT_EQ(std::bit_cast<std::uint64_t>(values[i]), std::bit_cast<std::uint64_t>(wanted))
            << to_text(part.identity) << " " << i;
    }
  });
}

// A weight and what it leaves, both moments: 2 + 2 + 4 + 4 bytes.
TEST(SplitWeights, TakeTwelveBytesAParameter) {
  const RankCase c = small_case("M[*E]-");
  CpuDevice device;
  Session session(device, options_of(c));
  const Module& m = session.module();
  for (std::size_t i = 0; i < m.parameters.size(); ++i) {
    std::int64_t bytes = 0;
    for (ValueId value : {m.parameter_values[i], m.states[i].m, m.states[i].v, m.states[i].remainder})
      if (value.valid()) bytes += static_cast<std::int64_t>(size_of(m.value(value).dtype));
    EXPECT_EQ(bytes, 12) << m.parameters[i].name;  // of floats: 4 + 4 + 4
  }
}

// SGD: 2 + 2 and a momentum of 4, or none.
TEST(SplitWeights, TakeEightBytesAParameterWithMomentumAndFourWithout) {
  for (const double momentum : {0.9, 0.}) {
    SessionOptions options = options_of(small_case("M[*E]-"));
    options.optimizer.kind = OptimizerKind::sgd;
    options.optimizer.momentum = momentum;
    CpuDevice device;
    Session session(device, options);
    const Module& m = session.module();
    for (std::size_t i = 0; i < m.parameters.size(); ++i) {
      std::size_t bytes = size_of(m.value(m.parameter_values[i]).dtype);
      for (ValueId value : m.states[i].all())
        if (value.valid()) bytes += size_of(m.value(value).dtype);
      EXPECT_EQ(bytes, momentum > 0 ? 8u : 4u) << m.parameters[i].name;
    }
  }
}

}  // namespace
}  // namespace weft
