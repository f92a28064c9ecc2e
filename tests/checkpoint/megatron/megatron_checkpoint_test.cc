// Whatever way Megatron's checkpoints keep a model, every parameter and every moment of it is found.
#include "weft/checkpoint/megatron/megatron_checkpoint.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/megatron/small_model.h"
#include "tests/checkpoint/torch_dist/written.h"
#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/checkpoint/megatron/megatron_keys.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
            "'mlp.experts.experts.linear_fc1.bias'; --megatron-transformer writes a key for each layer");
}

// As Megatron writes a transformer of which --moe-layer-freq or --linear-attention-freq is a list: a key for each layer, and
// MTP's layers under transformer_layer.
TEST(MegatronCheckpoint, layers_of_a_transformer_that_differ_have_a_key_each) {
  for (const auto& [transformer, others] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"[*-][*E][*E]/[*E]/[*E]", {"*-*E*E/*E/*E", "[*-]*E[*E]/*E/*E"}},
           {"[+-][+E][+E]/[+E]/[+E]", {"+-+E+E/+E/+E"}},
           {"*-*E/*E", {"[*-][*E]/[*E]"}},
           {"[GE][GE][*E]", {"GEGE*E"}},
           {"[GE]", {"GE"}}}) {
    SCOPED_TRACE(transformer);
    const ModelConfig saved = small_config(transformer);
    const MegatronForm form = transformer_megatron_form(saved);
    EXPECT_TRUE(form.transformer);
    EXPECT_FALSE(form.stacked);
    const std::vector<DiskTensor> keys = megatron_tensors(saved, form);
    std::set<std::string> names;
    for (const DiskTensor& tensor : keys) names.insert(tensor.name);
    const auto begin_with = [&](const std::string& prefix) {
      return std::count_if(names.begin(), names.end(),
                           [&](const std::string& name) { return name.starts_with(prefix); });
    };
    EXPECT_GT(begin_with("decoder.layers.0."), 5);
    EXPECT_EQ(begin_with("decoder.layers.3."), 0);
    EXPECT_EQ(begin_with("mtp.layers.0.transformer_layer.") > 5, transformer.find('/') != std::string::npos);
    EXPECT_TRUE(names.contains("decoder.final_layernorm.weight"));
    EXPECT_EQ(std::count_if(names.begin(), names.end(),
                            [](const std::string& name) { return name.find("mtp_model_layer") != std::string::npos; }),
              0);
    const ModelFolder folder;
    write_made(folder, made_checkpoint(keys));
    expect_all(folder, saved);
    for (const std::string& other : others) {
      SCOPED_TRACE(other);
      expect_all(folder, small_config(other));
    }
  }
}

TEST(MegatronCheckpoint, layers_of_a_transformer_that_are_alike_are_stacked) {
  for (const char* pattern : {"[*E][*E]", "*E*E", "[+-][+-]/[+-]"})
    EXPECT_TRUE(transformer_megatron_form(small_config(pattern)).stacked) << pattern;
  const auto refusal = [](const std::string& pattern) {
    return message_of<UserError>([&] { transformer_megatron_form(small_config(pattern)); });
  };
  for (const char* pattern : {"M*-", "[*]E[E]", "[*-E]", "-*", "*", "[*M]-"})
    EXPECT_EQ(refusal(pattern),
              std::string("the pattern ") + pattern +
                  " is not that of a transformer of Megatron's: its layers are an attention or a gated "
                  "delta net, and an MLP or experts after it; write it as a hybrid model");
  EXPECT_THAT(refusal("[+E][DE]"), HasSubstr("all its attention is of one kind"));
  EXPECT_THAT(refusal("[*E][*E]/[*-]"), HasSubstr("an MTP depth has a layer like the last one"));
  EXPECT_THAT(message_of<UserError>([] { stacked_megatron_form(small_config("[GE][GE]")); }),
              HasSubstr("Megatron chooses gated delta nets by a list"));
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
    expect_values(checkpoint, content, config, {.rows = config.vocabulary});
  for (const std::int64_t other : {10, 17}) {
    config.vocabulary = config.padded_vocabulary = other;
    EXPECT_EQ(
        message_of<UserError>([&] { MegatronCheckpoint(folder.path(), config, MasterWeights::never); }),
        fmt::format("{}: 'embedding.word_embeddings.weight' has 16 rows, 11 of them for tokens, but the model has "
                    "{} tokens; set --vocab-size",
                    folder.path().string(), other));
  }
}

// They are part of a run that goes on bit for bit.
TEST(MegatronCheckpoint, rows_of_a_padding_of_the_same_size_are_kept) {
  ModelConfig config = small_config("[*-]");
  config.padded_vocabulary = 16;
  const ModelFolder folder;
  write_made(folder, made_checkpoint(megatron_tensors(config, megatron_form(config))),
             {{"vocab_size", written::integer(11)}});
  expect_all(folder, config);
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

TEST(MegatronCheckpoint, state_of_an_optimizer_that_is_not_adam_is_refused_by_name) {
  const ModelConfig config = small_config("[*-]");
  const std::vector<DiskTensor> keys = megatron_tensors(config, megatron_form(config));
  MadeTensors made = made_tensors(keys, Content::weight);
  for (MadeTensor& t : made_tensors(keys, Content::first_moment, "optimizer.state.momentum_buffer.")) made.push_back(t);
  const ModelFolder folder;
  write_made(folder, made);
  EXPECT_THAT(MegatronCheckpoint(folder.path(), config, MasterWeights::where_wider).optimizer_problem(),
              HasSubstr("is not Adam's: it has 'optimizer.state.momentum_buffer."));
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
