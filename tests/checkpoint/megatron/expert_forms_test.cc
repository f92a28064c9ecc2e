// Experts that Megatron keeps indexed or grouped: every row of the table of forms, for weights, biases, masters and moments.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/megatron/small_model.h"
#include "weft/base/error.h"
#include "weft/checkpoint/megatron/megatron_keys.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string experts_of_layer = "decoder.layers.0.mlp.experts.experts.";
const std::vector<std::string> expert_keys = {"linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight",
                                              "linear_fc2.bias"};
// Of the model (BF16), its masters and moments.
const std::vector<std::string> all_states = {"", "optimizer.state.fp32_param.", "optimizer.state.exp_avg.",
                                             "optimizer.state.exp_avg_sq."};

MadeTensors made_experts(const ModelConfig& config) {
  return made_bf16_checkpoint(megatron_tensors(config, megatron_form(config)), "fp32_param");
}

void index_experts(MadeTensors& made, const std::string& name) {
  cut_experts(made, name, [&](std::size_t e) { return name + std::to_string(e); });
}

std::string refusal(const ModelFolder& folder, const ModelConfig& config,
                    MasterWeights masters = MasterWeights::where_wider) {
  return message_of<UserError>([&] { MegatronCheckpoint(folder.path(), config, masters); });
}

// The table of formats: indexed and grouped, for weights, biases and state, each by itself.
TEST(ExpertForms, experts_may_be_indexed_or_grouped_each_tensor_in_its_own_way) {
  const ModelConfig config = small_config("[*E]");
  const std::string layer = "decoder.layers.0.mlp.experts.";
  const std::vector<std::function<void(MadeTensors&, const std::string& prefix, const std::string& name)>> ways = {
      [](MadeTensors&, const std::string&, const std::string&) {},
      [&](MadeTensors& t, const std::string& prefix, const std::string& name) {
        put_experts_below(t, prefix + layer + "experts." + name);
      },
      [&](MadeTensors& t, const std::string& prefix, const std::string& name) {
        cut_experts(t, prefix + layer + "experts." + name,
                    [&](std::size_t e) { return prefix + layer + name + std::to_string(e); });
      },
      [&](MadeTensors& t, const std::string& prefix, const std::string& name) {
        cut_experts(t, prefix + layer + "experts." + name,
                    [&](std::size_t e) { return prefix + layer + "experts." + name + std::to_string(e); });
      },
      [&](MadeTensors& t, const std::string& prefix, const std::string& name) {
        cut_experts(t, prefix + layer + "experts." + name,
                    [&](std::size_t e) { return prefix + layer + "local_experts." + std::to_string(e) + "." + name; });
      },
      [&](MadeTensors& t, const std::string& prefix, const std::string& name) {
        cut_experts(t, prefix + layer + "experts." + name,
                    [&](std::size_t e) { return prefix + layer + "experts." + std::to_string(e) + "." + name; });
      },
      [&](MadeTensors& t, const std::string& prefix, const std::string& name) {  // without the second "experts."
        find_made(t, prefix + layer + "experts." + name).name = prefix + layer + name;
      },
  };
  const std::string names[] = {"linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight", "linear_fc2.bias"};
  const auto tensors = megatron_tensors(config, megatron_form(config));
  // Every way for all of them, and every pair of ways for weights and biases; the model, masters and moments differ, too.
  for (const std::string kind : {"", "param", "fp32_param"}) {
    std::vector<std::string> prefixes = {"", "optimizer.state.exp_avg.", "optimizer.state.exp_avg_sq."};
    if (!kind.empty()) prefixes.push_back("optimizer.state." + kind + ".");
    for (std::size_t of_weights = 0; of_weights < ways.size(); ++of_weights) {
      for (std::size_t of_biases = 0; of_biases < ways.size(); ++of_biases) {
        SCOPED_TRACE(kind + " " + std::to_string(of_weights) + " " + std::to_string(of_biases));
        MadeTensors made = kind.empty() ? made_checkpoint(tensors) : made_bf16_checkpoint(tensors, kind);
        for (std::size_t p = 0; p < prefixes.size(); ++p)
          for (const std::string& name : names)
            ways[((name.ends_with("bias") ? of_biases : of_weights) + p) % ways.size()](made, prefixes[p], name);
        const ModelFolder folder;
        write_made(folder, made);
        expect_all(folder, config);
        if (kind.empty()) continue;
        const MegatronCheckpoint model(folder.path(), config, MasterWeights::never);
        expect_values(model, Content::weight, config, {.rounded = true});
      }
    }
  }
}

// With singleton_local_shards: every expert a key, and the gate's rows apart from the other's.
TEST(ExpertForms, single_shards_have_the_gate_and_the_other_factor_as_keys) {
  const ModelConfig config = small_config("[*E][*-]");
  MadeTensors made = made_experts(config);
  for (const std::string& prefix : all_states) {
    const std::string first = prefix + std::string("decoder.layers.0.mlp."), experts = first + "experts.experts.";
    for (const char* name : {"linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight", "linear_fc2.bias"}) {
      const auto of_expert = [&](std::size_t e) { return experts + std::to_string(e) + "." + name; };
      cut_experts(made, experts + name, of_expert);
      for (std::size_t e = 0; e < 3; ++e)
        if (std::string(name).starts_with("linear_fc1")) cut_halves(made, of_expert(e));
    }
    cut_halves(made, first + "shared_experts.linear_fc1.weight");
    cut_halves(made, prefix + std::string("decoder.layers.1.mlp.linear_fc1.weight"));
  }
  const ModelFolder folder;
  write_made(folder, made);
  expect_all(folder, config);
}

// Row 1 of the table.
TEST(ExpertForms, a_grouped_weight_or_bias_is_read_even_where_indexed_ones_are_there_too) {
  const ModelConfig config = small_config("[*E]");
  MadeTensors made = made_experts(config);
  std::vector<std::string> spare;
  for (const std::string& state : all_states) {
    for (const std::string& key : expert_keys) {
      const std::string name = state + experts_of_layer + key;
      MadeTensors others = {find_made(made, name)};
      for (float& value : others[0].values) value = -1;
      index_experts(others, name);
      for (MadeTensor& other : others) {
        spare.push_back(other.name);
        made.push_back(std::move(other));
      }
    }
  }
  const ModelFolder folder;
  write_made(folder, made);
  const MegatronCheckpoint checkpoint(folder.path(), config, MasterWeights::where_wider);
  for (const Content content : {Content::weight, Content::first_moment, Content::second_moment})
    expect_values(checkpoint, content, config);
  EXPECT_THAT(checkpoint.others({}), testing::UnorderedElementsAreArray(spare));
}

// Row 3.
TEST(ExpertForms, an_incomplete_set_of_indexed_weights_or_biases_is_missing) {
  const ModelConfig config = small_config("[*E]");
  constexpr std::pair<Role, Role> roles[] = {{Role::gate, Role::down},
                                             {Role::gate_bias, Role::down_bias},
                                             {Role::down, Role::gate},
                                             {Role::down_bias, Role::gate}};
  for (const Content content : {Content::weight, Content::first_moment, Content::second_moment}) {
    const std::string state = content == Content::weight         ? ""
                              : content == Content::first_moment ? "optimizer.state.exp_avg."
                                                                 : "optimizer.state.exp_avg_sq.";
    for (std::size_t k = 0; k < expert_keys.size(); ++k) {
      const std::string name = state + experts_of_layer + expert_keys[k];
      SCOPED_TRACE(name);
      MadeTensors made = made_checkpoint(megatron_tensors(config, megatron_form(config)));
      index_experts(made, name);
      std::erase_if(made, [&](const MadeTensor& t) { return t.name == name + "1"; });
      const ModelFolder folder;
      write_made(folder, made);
      const MegatronCheckpoint checkpoint(folder.path(), config, MasterWeights::where_wider);
      for (int expert = 0; expert < 3; ++expert) {
        EXPECT_FALSE(checkpoint.has(content, {0, 1, roles[k].first, expert}));
        EXPECT_TRUE(checkpoint.has(content, {0, 1, roles[k].second, expert}));
      }
      EXPECT_THAT(checkpoint.others({}), ElementsAre(name + "0", name + "2"));
    }
  }
}

TEST(ExpertForms, an_incomplete_set_of_masters_is_refused_unless_nobody_asks_for_them) {
  const ModelConfig config = small_config("[*E]");
  const std::string key = experts_of_layer + "linear_fc2.weight", name = "optimizer.state.fp32_param." + key;
  for (const bool indexed : {false, true}) {
    MadeTensors made = made_experts(config);
    if (indexed) index_experts(made, name);
    std::erase_if(made, [&](const MadeTensor& t) { return t.name == name + (indexed ? "1" : ""); });
    const ModelFolder folder;
    write_made(folder, made);
    EXPECT_EQ(
        refusal(folder, config),
        folder.path().string() + ": there is no master of '" + key +
            "' (BF16, language.main.1.down.0), though there are masters of other tensors: the checkpoint is not "
            "complete; --no-load-optim takes the model's tensors for all, and so does --load-main-params-from-ckpt "
            "of weft train");
    const MegatronCheckpoint model(folder.path(), config, MasterWeights::never);
    expect_values(model, Content::weight, config, {.rounded = true});
  }
}

TEST(ExpertForms, a_tensor_that_no_optimizer_trains_or_that_is_as_wide_has_no_master) {
  const ModelConfig config = small_config("[*E]");
  const std::string key = "decoder.layers.0.mlp.router.weight";
  for (const bool trained : {false, true}) {
    MadeTensors made = made_experts(config);
    if (trained) find_made(made, key).bf16 = false;
    std::erase_if(made, [&](const MadeTensor& t) {
      return t.name == "optimizer.state.fp32_param." + key || (!trained && t.name != key && t.name.ends_with(key));
    });
    const ModelFolder folder;
    write_made(folder, made);
    const MegatronCheckpoint checkpoint(folder.path(), config, MasterWeights::where_wider);
    EXPECT_EQ(checkpoint.type_of(Content::weight, {0, 1, Role::router}), trained ? StoredType::f32 : StoredType::bf16);
    EXPECT_EQ(checkpoint.type_of(Content::weight, {0, 1, Role::down, 2}), StoredType::f32);
  }
}

TEST(ExpertForms, prefixes_of_wrappers_and_chains_are_no_part_of_a_key) {
  const ModelConfig config = small_config("[*E][*-]");
  for (const bool indexed : {false, true}) {
    MadeTensors made = made_bf16_checkpoint(megatron_tensors(config, megatron_form(config)), "param");
    for (const char* state : {"", "optimizer.state.param.", "optimizer.state.exp_avg."})
      for (const std::string& key : expert_keys)
        if (indexed) index_experts(made, state + experts_of_layer + key);
    int number = 0;
    for (MadeTensor& tensor : made) {
      constexpr std::string_view state = "optimizer.state.";
      if (!tensor.name.starts_with(state)) {
        tensor.name = (++number % 2 == 0 ? "module." : "module.module.") + tensor.name;
        continue;
      }
      const std::size_t dot = tensor.name.find('.', state.size());
      tensor.name = tensor.name.substr(0, dot + 1) + "module." + tensor.name.substr(dot + 1);
      const bool of_experts = tensor.name.find(".experts.") != std::string::npos;
      tensor.name = (of_experts ? "chained_1." : "chained_0.") + tensor.name;
    }
    const ModelFolder folder;
    write_made(folder, made);
    expect_all(folder, config);
  }
}

TEST(ExpertForms, two_tensors_of_one_key_are_refused_by_both_names) {
  const ModelConfig config = small_config("[*E]");
  const std::string norm = "decoder.final_layernorm.weight";
  struct Case {
    std::string there, added, what, key;
  };
  for (const Case& c :
       {Case{norm, "module." + norm, "the model's tensor", norm},
        Case{"optimizer.state.exp_avg." + norm, "chained_1.optimizer.state.exp_avg." + norm, "the first moment", norm},
        Case{"optimizer.state.fp32_param." + norm, "optimizer.state.param." + norm, "the master", norm}}) {
    MadeTensors made = made_experts(config);
    MadeTensor other = find_made(made, c.there);
    other.name = c.added;
    made.push_back(other);
    const ModelFolder folder;
    write_made(folder, made);
    const std::string first = std::min(c.there, c.added), second = std::max(c.there, c.added);
    EXPECT_EQ(refusal(folder, config), folder.path().string() + ": '" + first + "' and '" + second +
                                           "' would both be " + c.what + " of '" + c.key +
                                           "': two checkpoints are mixed; save it again with one of them");
    EXPECT_EQ(refusal(folder, config, MasterWeights::never).empty(), c.what == "the master");  // nobody asks for it
  }
}

TEST(ExpertForms, two_spellings_of_one_tensor_are_refused_by_both_names) {
  const ModelConfig config = small_config("[*E]");
  const auto refused = [&](MadeTensors made, const std::string& one, const std::string& other) {
    const ModelFolder folder;
    write_made(folder, made);
    EXPECT_EQ(refusal(folder, config), folder.path().string() + ": '" + one + "' and '" + other +
                                           "' are spellings of one tensor; save the checkpoint again with one of them");
  };
  const std::string outer = "decoder.layers.0.mlp.experts.";
  for (const std::string& key : expert_keys) {
    MadeTensors made = made_experts(config);
    made.push_back(find_made(made, experts_of_layer + key));
    made.back().name = outer + key;
    refused(made, experts_of_layer + key, outer + key);
  }
  // The same of complete sets of indexed ones; one that lacks some does not count.
  MadeTensors made = made_experts(config), again = {find_made(made, experts_of_layer + "linear_fc1.bias")};
  index_experts(made, experts_of_layer + "linear_fc1.bias");
  cut_experts(again, experts_of_layer + "linear_fc1.bias",
              [&](std::size_t e) { return outer + "local_experts." + std::to_string(e) + ".linear_fc1.bias"; });
  made.insert(made.end(), again.begin(), again.end());
  refused(made, experts_of_layer + "linear_fc1.bias0", outer + "local_experts.0.linear_fc1.bias");
  made.pop_back();
  const ModelFolder folder;
  write_made(folder, made);
  EXPECT_THAT(MegatronCheckpoint(folder.path(), config, MasterWeights::where_wider).others({}),
              ElementsAre(again[0].name, again[1].name));
}

// An MLP's norm may be a module of its own, and then has the name of the experts' norm.
TEST(ExpertForms, the_name_of_another_tensor_is_no_spelling) {
  const ModelConfig config = small_config("[*-E]");
  MadeTensors made = made_checkpoint(megatron_tensors(config, megatron_form(config)));
  const ModelFolder folder;
  write_made(folder, made);
  expect_all(folder, config);
  std::erase_if(made, [](const MadeTensor& t) { return t.name.ends_with("mlp.linear_fc1.layer_norm_weight"); });
  const ModelFolder without;
  write_made(without, made);
  const MegatronCheckpoint checkpoint(without.path(), config, MasterWeights::where_wider);
  EXPECT_FALSE(checkpoint.has(Content::weight, {0, 1, Role::norm}));
  EXPECT_TRUE(checkpoint.has(Content::weight, {0, 2, Role::norm}));
}

TEST(ExpertForms, biases_that_the_model_has_not_are_left_where_they_are) {
  ModelConfig with = small_config("[*E]"), config = with;
  config.experts.bias = false;
  for (const bool indexed : {false, true}) {
    MadeTensors made = made_experts(with);
    std::vector<std::string> spare;
    for (const std::string& state : all_states) {
      for (const char* key : {"linear_fc1", "linear_fc2"}) {
        const std::string name = state + experts_of_layer + key + ".bias";
        if (indexed) {
          index_experts(made, name);
          index_experts(made, state + experts_of_layer + key + ".weight");
        }
        for (const char* number : {"0", "1", "2"})
          if (indexed) spare.push_back(name + number);
        if (!indexed) spare.push_back(name);
      }
    }
    const ModelFolder folder;
    write_made(folder, made);
    const MegatronCheckpoint checkpoint(folder.path(), config, MasterWeights::where_wider);
    for (const Content content : {Content::weight, Content::first_moment, Content::second_moment})
      expect_values(checkpoint, content, config);
    EXPECT_THAT(checkpoint.others({}), testing::UnorderedElementsAreArray(spare));
  }
}

TEST(ExpertForms, an_mlp_is_neither_indexed_nor_grouped) {
  const ModelConfig config = small_config("[*-]");
  MadeTensors made = made_checkpoint(megatron_tensors(config, megatron_form(config)));
  const std::string name = "decoder.layers.0.mlp.linear_fc2.weight";
  find_made(made, name).name += "0";
  const ModelFolder folder;
  write_made(folder, made);
  const MegatronCheckpoint checkpoint(folder.path(), config, MasterWeights::where_wider);
  EXPECT_FALSE(checkpoint.has(Content::weight, {0, 1, Role::down}));
  EXPECT_THAT(checkpoint.others({}), ElementsAre(name + "0"));
}

TEST(ExpertForms, another_number_of_experts_is_refused) {
  const ModelConfig config = small_config("[*E]");
  const std::string name = experts_of_layer + "linear_fc2.weight";  // [3, 8, 6]
  const auto refused = [&](const std::function<void(MadeTensor&)>& change) {
    MadeTensors made = made_checkpoint(megatron_tensors(config, megatron_form(config)));
    MadeTensor& tensor = find_made(made, name);
    change(tensor);
    std::int64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) elements *= extent;
    tensor.values.resize(static_cast<std::size_t>(elements));
    const ModelFolder folder;
    write_made(folder, made);
    const std::string message = refusal(folder, config), head = folder.path().string() + ": ";
    EXPECT_EQ(message.substr(0, head.size()), head);
    return message.substr(std::min(message.size(), head.size()));
  };
  for (const auto& [shape, text] : std::vector<std::pair<std::vector<std::int64_t>, std::string>>{
           {{4, 8, 6}, "[4, 8, 6]"},
           {{2, 8, 6}, "[2, 8, 6]"},
           {{32, 6}, "[32, 6]"},  // of four, below one another
           {{25, 6}, "[25, 6]"},  // cannot be split
           {{0, 8, 6}, "[0, 8, 6]"},
           {{3, 0, 6}, "[3, 0, 6]"},
           {{0, 6}, "[0, 6]"},
           {{144}, "[144]"}})
    EXPECT_EQ(refused([&, s = shape](MadeTensor& tensor) { tensor.shape = s; }),
              "tensor '" + name + "' has the shape " + text + ", but the model asks for [3, 8, 6]");
  // Indexed ones.
  MadeTensors made = made_checkpoint(megatron_tensors(config, megatron_form(config)));
  index_experts(made, name);
  MadeTensor fourth = find_made(made, name + "2");
  fourth.name = name + "3";
  made.push_back(fourth);
  const ModelFolder folder;
  write_made(folder, made);
  EXPECT_EQ(refusal(folder, config),
            folder.path().string() + ": there is '" + name + "3', but the model has 3 experts; set --num-experts");
}

}  // namespace
}  // namespace weft
