// Rotary embeddings of config.json, in the two ways Hugging Face has written them.
#include <cmath>
#include <tuple>

#include <gtest/gtest.h>

#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"
#include "weft/checkpoint/hugging_face.h"

namespace weft {
namespace {

RopeSpec rope_of(const Json& patch) {
  const ModelFolder folder("llama");
  folder.patch_config({{"rope_parameters", nullptr}});
  folder.patch_config(patch);
  return read_hugging_face_config(folder.path()).config.attention.rope;
}

std::string complaint(const Json& patch) {
  const std::string message = message_of<UserError>([&] { rope_of(patch); });
  const std::size_t at = message.find("config.json: ");
  return at == std::string::npos ? message : message.substr(at + 13);
}

auto all_of(const RopeSpec& rope) {
  return std::tuple(rope.scaling, rope.enabled, rope.base, rope.fraction, rope.style, rope.factor,
                    rope.original_positions, rope.low_frequency, rope.high_frequency, rope.beta_fast, rope.beta_slow,
                    rope.magnitude, rope.truncate);
}

// 5.x: everything in rope_parameters. 4.x: rope_theta beside rope_scaling, whose type may be called "type".
RopeSpec same_in_both(const Json& scaling, double theta) {
  Json parameters = scaling, old = scaling;
  parameters["rope_theta"] = theta;
  const RopeSpec now = rope_of({{"rope_parameters", parameters}});
  EXPECT_EQ(all_of(now), all_of(rope_of({{"rope_theta", theta}, {"rope_scaling", scaling}})));
  old["type"] = old["rope_type"];
  old.erase("rope_type");
  EXPECT_EQ(all_of(now), all_of(rope_of({{"rope_theta", theta}, {"rope_scaling", old}})));
  return now;
}

TEST(HuggingFaceRope, Default) {
  EXPECT_EQ(rope_of(Json::object()).base, 1e4);
  EXPECT_EQ(rope_of({{"rope_theta", 5e5}}).base, 5e5);
  EXPECT_EQ(rope_of({{"rope_theta", 5e5}, {"rope_scaling", nullptr}}).base, 5e5);
  EXPECT_EQ(rope_of({{"rope_theta", 5e5}, {"rope_parameters", {{"rope_theta", 6e5}}}}).base, 6e5);
  const RopeSpec rope = same_in_both({{"rope_type", "default"}}, 2e5);
  EXPECT_EQ(rope.scaling, RopeSpec::Scaling::none);
  EXPECT_EQ(rope.base, 2e5);
}

TEST(HuggingFaceRope, Linear) {
  const RopeSpec rope = same_in_both({{"rope_type", "linear"}, {"factor", 4}}, 1e4);
  EXPECT_EQ(rope.scaling, RopeSpec::Scaling::linear);
  EXPECT_EQ(rope.factor, 4);
  EXPECT_EQ(rope.magnitude, 1);
}

TEST(HuggingFaceRope, Llama3) {
  const Json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.5},
                        {"high_freq_factor", 4.5},
                        {"original_max_position_embeddings", 64}};
  const RopeSpec rope = same_in_both(scaling, 5e5);
  EXPECT_EQ(rope.scaling, RopeSpec::Scaling::llama3);
  EXPECT_EQ(rope.factor, 8);
  EXPECT_EQ(rope.low_frequency, 1.5);
  EXPECT_EQ(rope.high_frequency, 4.5);
  EXPECT_EQ(rope.original_positions, 64);
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    Json less = scaling;
    less.erase(key);
    EXPECT_EQ(complaint({{"rope_scaling", less}}), std::string("rope_scaling: lacks '") + key + "'");
  }
  Json fewer = scaling;
  fewer.erase("original_max_position_embeddings");
  EXPECT_EQ(rope_of({{"rope_scaling", fewer}}).original_positions, 128);  // max_position_embeddings
  fewer["high_freq_factor"] = 1.5;
  EXPECT_EQ(complaint({{"rope_scaling", fewer}}),
            "rope_scaling: 'high_freq_factor' is 1.5: it must exceed low_freq_factor");
}

TEST(HuggingFaceRope, Yarn) {
  const Json scaling = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  const RopeSpec rope = same_in_both(scaling, 1e6);
  EXPECT_EQ(rope.scaling, RopeSpec::Scaling::yarn);
  EXPECT_EQ(rope.factor, 4);
  EXPECT_EQ(rope.original_positions, 32);
  EXPECT_EQ(rope.beta_fast, 32);
  EXPECT_EQ(rope.beta_slow, 1);
  EXPECT_TRUE(rope.truncate);
  EXPECT_DOUBLE_EQ(rope.magnitude, 0.1 * std::log(4.0) + 1);

  Json all = scaling;
  all.update({{"beta_fast", 16}, {"beta_slow", 2}, {"truncate", false}, {"attention_factor", 0.75}, {"mscale", 2}});
  const RopeSpec full = same_in_both(all, 1e6);
  EXPECT_EQ(full.beta_fast, 16);
  EXPECT_EQ(full.beta_slow, 2);
  EXPECT_FALSE(full.truncate);
  EXPECT_EQ(full.magnitude, 0.75);

  Json mscale = scaling;
  mscale.update({{"mscale", 0.707}, {"mscale_all_dim", 1.0}});
  EXPECT_DOUBLE_EQ(same_in_both(mscale, 1e6).magnitude, (0.1 * 0.707 * std::log(4.0) + 1) / (0.1 * std::log(4.0) + 1));
  mscale["mscale_all_dim"] = 0;  // one alone does nothing
  EXPECT_DOUBLE_EQ(same_in_both(mscale, 1e6).magnitude, 0.1 * std::log(4.0) + 1);

  Json small = scaling;
  small["factor"] = 1;
  EXPECT_EQ(same_in_both(small, 1e6).magnitude, 1);
  small["factor"] = nullptr;  // 128 positions over 32
  EXPECT_EQ(rope_of({{"max_position_embeddings", 128}, {"rope_scaling", small}}).factor, 4);
  small.erase("factor");
  EXPECT_EQ(complaint({{"rope_scaling", small}}), "rope_scaling: lacks 'factor'");
  // Beside the object, the number of positions of the first training wins.
  EXPECT_EQ(rope_of({{"rope_scaling", scaling}, {"original_max_position_embeddings", 16}}).original_positions, 16);
}

TEST(HuggingFaceRope, WhatWeftDoesNotDoIsRefused) {
  EXPECT_EQ(complaint({{"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}}}),
            "rope_scaling: 'type' is \"dynamic\": Weft supports default, linear, llama3 and yarn");
  EXPECT_EQ(complaint({{"rope_parameters", {{"rope_type", "longrope"}, {"factor", 2}}}}),
            "rope_parameters: 'rope_type' is \"longrope\": Weft supports default, linear, llama3 and yarn");
  EXPECT_EQ(complaint({{"partial_rotary_factor", 0.5}}),
            "'partial_rotary_factor' is 0.5: models of this family turn whole heads");
  EXPECT_EQ(complaint({{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}),
            "rope_parameters: 'partial_rotary_factor' is 0.5: models of this family turn whole heads");
  EXPECT_EQ(complaint({{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}}),
            "'rope_parameters' is {\"full_attention\":{\"rope_type\":\"default\"}}: models of this family have one "
            "rotary embedding for all layers");
  EXPECT_EQ(complaint({{"rope_theta", 0.5}}), "rope_theta must be greater than 1, is 0.5");
  EXPECT_EQ(complaint({{"rope_scaling", {{"type", "linear"}, {"factor", 0}}}}),
            "rope_scaling: 'factor' is 0: it must be above 0");
}

}  // namespace
}  // namespace weft
