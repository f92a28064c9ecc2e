// Small modules and plans for tests.
#pragma once

#include <string>

#include "weft/model/builder.h"
#include "weft/optim/adamw.h"
#include "weft/plan/build.h"

namespace weft {

inline ModelConfig small_config(const std::string& pattern) {
  ModelConfig c;
  c.pattern = pattern;
  c.hidden = 8;
  c.vocabulary = 11;
  c.attention = {.heads = 2, .kv_heads = 1, .head_dim = 4};
  c.mlp.ffn = 12;
  c.experts.experts = 4;
  c.experts.ffn = 6;
  c.experts.router.k = 2;
  return c;
}

inline Module small_module(const std::string& pattern, const ModuleOptions& given = {},
                           const GradientLayout& layout = {}, const AdamOptions& adam = {}) {
  ModuleOptions options = given;
  options.batch = 2;
  options.length = 3;
  Module module = build_module(small_config(pattern), options);
  add_updates(module, options.precision, adam, layout);
  return module;
}

inline Plan small_plan(const std::string& pattern, int micro_batches) {
  PlanOptions options;
  options.micro_batches = micro_batches;
  Plan plan = build_plan(small_module(pattern), options);
  plan.pattern = pattern;
  return plan;
}

}  // namespace weft
