// How tensors are cut into parts, and that what fills the last parts up is in no result.
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/execute/ranks.h"

namespace weft {
namespace {

using enum ShardingStrategy;

RankCase every_kind() {
  RankCase c = small_case("M[*E]G-/[*E]");
  c.config.experts.shared_ffn = 8;
  return c;
}

struct Counted {
  std::map<ParameterIdentity, std::int64_t> held, all;  // elements: that some rank owns, and that there are
  int shorter = 0, empty = 0;                           // parts
};

void count(const Module& module, Counted& counted) {
  for (std::size_t i = 0; i < module.parameters.size(); ++i) {
    const TensorId id(static_cast<std::int64_t>(i));
    const Shard *inner = module.shard_of(id, 1), *outer = module.shard_of(id, 2);
    for (const Shard* shard : {inner, outer}) {
      if (!shard) continue;
      const Shape& whole = module.value((inner ? inner : outer)->whole).shape;
      const std::int64_t row = whole.dims() > 1 ? whole[whole.dims() - 1] : 1;
      EXPECT_EQ(shard->elements % row, 0) << module.parameters[i].name;
      EXPECT_EQ(shard->elements * 2 % 128, 0) << module.parameters[i].name << ": bf16 is the smallest type";
      counted.shorter += shard->here > 0 && shard->here < shard->elements;
      counted.empty += shard->here == 0;
    }
    if (!module.layout.owns(module.parameters[i].placement)) continue;
    for (const ParameterPart& part : module.parameters[i].parts) {
      counted.held[part.identity] += part.elements();
      counted.all[part.identity] = part.shape.elements();
    }
  }
}

// At whole rows and multiples of 128 bytes. The last parts may be shorter, or hold nothing.
TEST(ShardLayout, divides_every_element_once) {
  for (const auto& [ranks, expert_ranks, instances] :
       {std::tuple{2, 1, 1}, {8, 2, 1}, {16, 1, 1}, {4, 2, 2}, {8, 2, 2}, {16, 1, 4}})
    for (const bool divided : {false, true}) {
      Counted counted;
      for (int r = 0; r < ranks; ++r) {
        ModuleOptions options;
        options.length = 6;
        options.layout = Layout::of({.dp = ranks, .ep = expert_ranks, .instances = instances}, RankId(r));
        options.sharding = optim_grads_params;
        options.shard_over_instances = divided;
        count(build_module(every_kind().config, options), counted);
      }
      EXPECT_EQ(counted.held, counted.all)
          << ranks << " ranks in " << instances << " instances" << (divided ? ", divided" : "");
      EXPECT_GT(counted.shorter, 0);
      EXPECT_GT(counted.empty, 0);
    }
}

// A device whose memory is full of NaN until it is written.
class Littered : public CpuDevice {
 public:
  std::unique_ptr<Memory> allocate(std::size_t bytes) override {
    auto memory = CpuDevice::allocate(bytes);
    std::memset(memory->data(), 0xFF, bytes);
    return memory;
  }
};

// A part has memory beyond the end of its tensor, and so has a whole one beyond its elements.
TEST(ShardLayout, what_fills_parts_up_is_in_no_result) {
  for (const auto& [strategy, instances] :
       {std::pair{optim, 1}, {optim_grads, 1}, {optim_grads_params, 1}, {optim_grads_params, 2}})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      RankCase c = every_kind();
      c.dtype = dtype;
      c.bf16_gradients = dtype == DType::bf16;
      c.ranks = 8;
      c.expert_ranks = 2;
      c.sharding = strategy;
      c.instances = instances;
      c.shard_over_instances = instances > 1;
      const RankRun clean = run_ranks(c), littered = run_ranks(c, [](const RankCase&own, World*world) {
                                            Littered device;
                                            return run_rank(own, world, device);
                                          });
      EXPECT_EQ(littered.losses, clean.losses) << name_of(strategy);
      EXPECT_EQ(littered.norms, clean.norms) << name_of(strategy);
      EXPECT_TRUE(littered.parameters == clean.parameters) << name_of(strategy);
      EXPECT_EQ(littered.digest, clean.digest) << name_of(strategy);
      EXPECT_TRUE(std::isfinite(littered.losses.back()) && std::isfinite(littered.norms.back())) << name_of(strategy);
    }
}

}  // namespace
}  // namespace weft
