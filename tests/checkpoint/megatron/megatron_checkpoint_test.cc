// Whatever way Megatron's checkpoints keep a model, every parameter and every moment of it is found.
#include "weft/checkpoint/megatron/megatron_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/megatron/megatron_folder_made.h"
#include "tests/checkpoint/torch_dist/written.h"
#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/checkpoint/megatron/megatron_keys.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ModelConfig small_config(const std::string& pattern) {
  ModelConfig config;
  config.pattern = pattern;
  config.hidden = 8;
  config.vocabulary = 11;
  config.attention = {.heads = 4, .kv_heads = 2, .head_dim = 3, .qk_norm = true};
  config.mlp.ffn = 5;
  config.experts.experts = 3;
  config.experts.ffn = 6;
  config.experts.bias = config.experts.router_bias = true;
  config.experts.shared_ffn = 4;
  config.latent_attention.heads = 2;
  config.latent_attention.q_rank = 6;
  config.latent_attention.kv_rank = 4;
  config.latent_attention.head_dim = 3;
  config.latent_attention.rotary_dim = 2;
  config.latent_attention.value_dim = 3;
  config.mamba = {.heads = 4, .head_dim = 2, .groups = 2, .state = 3, .chunk = 4};
  config.delta_net = {.heads = 4, .key_heads = 2, .head_dim = 2, .key_dim = 3, .chunk = 4};
  return config;
}

std::map<ParameterIdentity, Shape> parameters_of(const ModelConfig& config) {
  std::map<ParameterIdentity, Shape> parameters;
  for (const DiskTensor& tensor : canonical_tensors(config, canonical_form(parse_pattern(config.pattern))))
    for (const DiskPart& part : tensor.parts) parameters[part.identity] = part.parameter;
  return parameters;
}

// Every parameter in whole, and a box from its middle.
void expect_values(const CheckpointReader& checkpoint, Content content, const ModelConfig& config,
                   std::int64_t rows = 1 << 20) {
  for (const auto& [identity, shape] : parameters_of(config)) {
    ASSERT_TRUE(checkpoint.has(content, identity)) << to_text(identity);
    const bool padded = identity.role == Role::embedding || identity.role == Role::head;
    ParameterPart part;
    part.identity = identity;
    part.shape = shape;
    for (const bool middle : {false, true}) {
      part.box = Box::whole(shape);
      if (middle) {
        part.box.extent = {};
        for (int d = 0; d < shape.dims(); ++d) {
          const std::int64_t begin = shape[d] / 3, extent = std::max<std::int64_t>(1, shape[d] / 2);
          part.box.begin[static_cast<std::size_t>(d)] = begin;
          part.box.extent.append(std::min(extent, shape[d] - begin));
        }
      }
      HostTensor values(DType::f64, part.elements());
      checkpoint.read(content, part, values);
      each_number(part, values, [&](std::int64_t index, double number) {
        const bool is_padding = padded && index / shape[1] >= rows;
        EXPECT_EQ(number, is_padding ? 0 : made_value(content, identity, index)) << to_text(identity) << " " << index;
      });
    }
  }
}

// Model and moments.
MadeTensors made_checkpoint(const std::vector<DiskTensor>& tensors) {
  MadeTensors all = made_tensors(tensors, Content::weight);
  for (MadeTensor& t : made_tensors(tensors, Content::first_moment, "optimizer.state.exp_avg.")) all.push_back(t);
  for (MadeTensor& t : made_tensors(tensors, Content::second_moment, "optimizer.state.exp_avg_sq.")) all.push_back(t);
  return all;
}

void expect_all(const ModelFolder& folder, const ModelConfig& config) {
  const MegatronCheckpoint checkpoint(folder.path(), config, MasterWeights::where_wider);
  for (const Content content : {Content::weight, Content::first_moment, Content::second_moment})
    expect_values(checkpoint, content, config);
  std::set<ParameterIdentity> identities;
  for (const auto& [identity, shape] : parameters_of(config)) identities.insert(identity);
  EXPECT_THAT(checkpoint.others(identities), IsEmpty());
  EXPECT_EQ(checkpoint.optimizer_problem(), "");
  checkpoint.verify();
}

PickledFields with_pattern(const std::string& pattern) { return {{"hybrid_layer_pattern", written::text(pattern)}}; }

TEST(MegatronCheckpoint, layers_may_be_numbered_in_any_way) {
  struct Case {
    const char *model, *saved;  // patterns
  };
  for (const Case& c : {Case{"[*-][*E]", "[*-][*E]"}, Case{"[*-][*E]", "*-*E"}, Case{"*-*E", "[*-][*E]"},
                        Case{"M[M*-]G", "[M][M*-][G]"}, Case{"[M*-]E", "M*-E"}, Case{"M*-[GE]", "[M*-]GE"},
                        Case{"[+-][+E]/[+E]/[+E]", "+-+E/+E/+E"}, Case{"+-+E/+E", "[+-][+E]/[+E]"}}) {
    SCOPED_TRACE(std::string(c.model) + " from " + c.saved);
    const ModelConfig config = small_config(c.model), saved = small_config(c.saved);
    const ModelFolder folder;
    write_made(folder, made_checkpoint(megatron_tensors(saved, megatron_form(saved))), with_pattern(c.saved));
    expect_all(folder, config);
  }
}

// A fork writes groups so: by the keys alone it is seen.
TEST(MegatronCheckpoint, groups_saved_under_physical_numbers_are_recognised_by_their_keys) {
  const ModelConfig config = small_config("[M*-]"), flat = small_config("M*-");
  const ModelFolder folder;
  write_made(folder, made_checkpoint(megatron_tensors(flat, megatron_form(flat))), with_pattern("[M*-]"));
  expect_all(folder, config);
}

TEST(MegatronCheckpoint, a_transformers_stacked_layers_are_those_of_groups_and_of_flat_patterns) {
  for (const char* pattern : {"[*E][*E]", "*E*E", "[*E][*E]/[*E]", "*E*E/*E"}) {
    SCOPED_TRACE(pattern);
    const ModelConfig transformer = small_config(pattern[1] == '*'                       ? pattern
                                                 : std::string(pattern).ends_with("/*E") ? "[*E][*E]/[*E]"
                                                                                         : "[*E][*E]");
    const std::vector<DiskTensor> keys = megatron_tensors(transformer, stacked_megatron_form(transformer));
    EXPECT_EQ(keys[3].name.find("decoder.layers.self_attention."), 0u) << keys[3].name;
    const ModelFolder folder;
    write_made(folder, made_checkpoint(keys));
    expect_all(folder, small_config(pattern));
  }
}

TEST(MegatronCheckpoint, layers_that_differ_cannot_be_stacked) {
  EXPECT_EQ(message_of<UserError>([] { stacked_megatron_form(small_config("[*-][*E]")); }),
            "the layers of the pattern [*-][*E] cannot be stacked into one tensor each: 1 of 2 have "
            "'mlp.experts.experts.linear_fc1.bias'; use keys for every layer");
}

// The table of formats: indexed and grouped, for weights, biases and state, each by itself.
TEST(MegatronCheckpoint, experts_may_be_indexed_or_grouped_each_tensor_in_its_own_way) {
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
  const std::string prefixes[] = {"", "optimizer.state.exp_avg.", "optimizer.state.exp_avg_sq."};
  const std::string names[] = {"linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight", "linear_fc2.bias"};
  const auto tensors = megatron_tensors(config, megatron_form(config));
  // Every way for all of them, and every pair of ways for weights and biases.
  for (std::size_t of_weights = 0; of_weights < ways.size(); ++of_weights) {
    for (std::size_t of_biases = 0; of_biases < ways.size(); ++of_biases) {
      SCOPED_TRACE(std::to_string(of_weights) + " " + std::to_string(of_biases));
      MadeTensors made = made_checkpoint(tensors);
      for (std::size_t p = 0; p < 3; ++p)
        for (const std::string& name : names)
          ways[((name.ends_with("bias") ? of_biases : of_weights) + p) % ways.size()](made, prefixes[p], name);
      const ModelFolder folder;
      write_made(folder, made);
      expect_all(folder, config);
    }
  }
}

// With singleton_local_shards: every expert a key, and the gate's rows apart from the other's.
TEST(MegatronCheckpoint, single_shards_have_the_gate_and_the_other_factor_as_keys) {
  const ModelConfig config = small_config("[*E][*-]");
  MadeTensors made = made_checkpoint(megatron_tensors(config, megatron_form(config)));
  for (const char* prefix : {"", "optimizer.state.exp_avg.", "optimizer.state.exp_avg_sq."}) {
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

TEST(MegatronCheckpoint, a_grouped_tensor_is_read_even_where_indexed_ones_are_there_too) {
  const ModelConfig config = small_config("[*E]");
  MadeTensors made = made_checkpoint(megatron_tensors(config, megatron_form(config)));
  const std::string name = "decoder.layers.0.mlp.experts.experts.linear_fc2.weight";
  MadeTensors others = {find_made(made, name)};
  for (float& value : others[0].values) value = -1;
  cut_experts(others, name, [&](std::size_t e) { return name + std::to_string(e); });
  made.insert(made.end(), others.begin(), others.end());
  const ModelFolder folder;
  write_made(folder, made);
  const MegatronCheckpoint checkpoint(folder.path(), config, MasterWeights::where_wider);
  expect_values(checkpoint, Content::weight, config);
  EXPECT_THAT(checkpoint.others({}), ElementsAre(name + "0", name + "1", name + "2"));
}

TEST(MegatronCheckpoint, an_incomplete_set_of_indexed_experts_is_missing) {
  const ModelConfig config = small_config("[*E]");
  MadeTensors made = made_checkpoint(megatron_tensors(config, megatron_form(config)));
  const std::string name = "decoder.layers.0.mlp.experts.experts.linear_fc2.weight";
  cut_experts(made, name, [&](std::size_t e) { return name + std::to_string(e); });
  std::erase_if(made, [&](const MadeTensor& t) { return t.name == name + "1"; });
  const ModelFolder folder;
  write_made(folder, made);
  const MegatronCheckpoint checkpoint(folder.path(), config, MasterWeights::where_wider);
  EXPECT_FALSE(checkpoint.has(Content::weight, {0, 1, Role::down, 0}));
  EXPECT_TRUE(checkpoint.has(Content::weight, {0, 1, Role::up, 0}));
  EXPECT_TRUE(checkpoint.has(Content::first_moment, {0, 1, Role::down, 0}));
  EXPECT_THAT(checkpoint.others({}), ElementsAre(name + "0", name + "2"));
}

TEST(MegatronCheckpoint, projections_of_recurrent_layers_may_be_in_one_piece) {
  const ModelConfig config = small_config("MG");
  MadeTensors made = made_checkpoint(megatron_tensors(config, megatron_form(config)));
  const auto join = [&](const std::string& whole, const std::vector<std::string>& parts) {
    for (const char* prefix : {"", "optimizer.state.exp_avg."}) {
      std::vector<std::string> names;
      for (const std::string& part : parts) names.push_back(prefix + whole + "." + part);
      join_rows(made, names, prefix + whole);
    }
  };
  join("decoder.layers.0.mixer.in_proj.weight", {"z", "x", "B", "C", "dt"});
  join("decoder.layers.0.mixer.conv1d.weight", {"x", "B", "C"});
  join("decoder.layers.0.mixer.conv1d.bias", {"x", "B", "C"});
  join("decoder.layers.1.self_attention.in_proj.weight", {"query", "key", "value", "z", "beta", "alpha"});
  join("decoder.layers.1.self_attention.conv1d.weight", {"query", "key", "value"});
  const ModelFolder folder;
  write_made(folder, made);
  expect_all(folder, config);
}

TEST(MegatronCheckpoint, rows_of_the_vocabularys_padding_are_dropped) {
  ModelConfig config = small_config("[*-]"), saved = config;
  saved.padded_vocabulary = 16;
  config.padded_vocabulary = 12;
  const ModelFolder folder;
  write_made(folder, made_checkpoint(megatron_tensors(saved, megatron_form(saved))),
             {{"vocab_size", written::integer(11)}});
  const MegatronCheckpoint checkpoint(folder.path(), config, MasterWeights::where_wider);
  for (const Content content : {Content::weight, Content::first_moment})
    expect_values(checkpoint, content, config, config.vocabulary);
  for (const std::int64_t other : {10, 17}) {
    config.vocabulary = config.padded_vocabulary = other;
    EXPECT_EQ(
        message_of<UserError>([&] { MegatronCheckpoint(folder.path(), config, MasterWeights::never); }),
        fmt::format("{}: 'embedding.word_embeddings.weight' has 16 rows, 11 of them for tokens, but the model has "
                    "{} tokens; set --vocab-size",
                    folder.path().string(), other));
  }
}

TEST(MegatronCheckpoint, says_how_far_the_run_had_come) {
  using namespace written;
  const ModelConfig config = small_config("[*-]");
  const MadeTensors made = made_tensors(megatron_tensors(config, megatron_form(config)), Content::weight);
  const std::string groups = list({fields({{"lr", integer(1)}, {"step", integer(5)}}), fields({{"step", integer(5)}})});
  const std::string optimizer = fields({{"optimizer", fields({{"param_groups", groups}})}});
  const auto position = [&](const PickledFields& args, const PickledFields& more) {
    const ModelFolder folder;
    write_made(folder, made, args, more);
    return MegatronCheckpoint(folder.path(), config, MasterWeights::never).position();
  };
  const RunPosition all = position({{"consumed_train_samples", integer(28)}}, {{"optimizer", optimizer}});
  EXPECT_EQ(all.iteration, 7);
  EXPECT_EQ(all.consumed_samples, 28);
  EXPECT_EQ(all.optimizer_steps, 5);
  const RunPosition schedule = position({}, {{"opt_param_scheduler", fields({{"num_steps", integer(21)}})}});
  EXPECT_EQ(schedule.consumed_samples, 21);
  EXPECT_EQ(schedule.optimizer_steps, 7);
  EXPECT_EQ(position({{"global_batch_size", integer(4)}}, {}).consumed_samples, 28);
}

TEST(MegatronCheckpoint, state_in_buckets_is_refused_by_name) {
  const ModelConfig config = small_config("[*-]");
  MadeTensors made = made_tensors(megatron_tensors(config, megatron_form(config)), Content::weight);
  made.push_back({"chained_0.optimizer.distributed.dp_group_idx_0.gbuf_idx_0.exp_avg", {4}, {1, 2, 3, 4}});
  const ModelFolder folder;
  write_made(
      folder, made, {},
      {{"content_metadata", written::fields({{"distrib_optim_sharding_type", written::text("dp_reshardable")}})}});
  const MegatronCheckpoint checkpoint(folder.path(), config, MasterWeights::where_wider);
  expect_values(checkpoint, Content::weight, config);
  EXPECT_THAT(checkpoint.optimizer_problem(), HasSubstr("the form dp_reshardable"));
  EXPECT_THAT(checkpoint.optimizer_problem(), HasSubstr("--no-load-optim"));
  EXPECT_THAT(checkpoint.optimizer_problem(), HasSubstr("--dist-ckpt-optim-fully-reshardable"));
}

TEST(MegatronCheckpoint, extra_state_is_dropped_and_other_tensors_are_told) {
  const ModelConfig config = small_config("[*-]");
  MadeTensors made = made_checkpoint(megatron_tensors(config, megatron_form(config)));
  made.push_back({"output_layer._extra_state", {1}, {1}});
  made.push_back({"decoder.layers.0.mlp.linear_fc1._extra_state/shard_0_1", {1}, {1}});
  made.push_back({"embedding.position_embeddings.weight", {1}, {1}});
  made.push_back({"optimizer.state.exp_avg.embedding.position_embeddings.weight", {1}, {1}});
  const ModelFolder folder;
  write_made(folder, made);
  EXPECT_THAT(MegatronCheckpoint(folder.path(), config, MasterWeights::never).others({}),
              ElementsAre("embedding.position_embeddings.weight",
                          "optimizer.state.exp_avg.embedding.position_embeddings.weight"));
}

TEST(MegatronCheckpoint, a_tensor_of_another_shape_is_named_with_both) {
  ModelConfig config = small_config("[*-]");
  const ModelFolder folder;
  write_made(folder, made_checkpoint(megatron_tensors(config, megatron_form(config))));
  config.mlp.ffn = 7;
  EXPECT_EQ(message_of<UserError>([&] { MegatronCheckpoint(folder.path(), config, MasterWeights::never); }),
            folder.path().string() +
                ": tensor 'decoder.layers.0.mlp.linear_fc1.weight' has the shape [10, 8], but the model asks for "
                "[14, 8]");
}

}  // namespace
}  // namespace weft
