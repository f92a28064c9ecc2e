#include "weft/checkpoint/megatron/shared_state.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "weft/base/text.h"

namespace weft {
namespace {

// Flags that mean the same in Megatron and that are no part of the model.
constexpr const char* run_args[] = {"lr",
                                    "min_lr",
                                    "lr_decay_style",
                                    "lr_decay_iters",
                                    "lr_warmup_iters",
                                    "lr_warmup_init",
                                    "weight_decay",
                                    "weight_decay_incr_style",
                                    "adam_beta1",
                                    "adam_beta2",
                                    "adam_eps",
                                    "sgd_momentum",
                                    "clip_grad",
                                    "seed",
                                    "seq_length",
                                    "micro_batch_size",
                                    "global_batch_size",
                                    "train_iters",
                                    "train_samples"};

class State {
 public:
  explicit State(const SharedState& state) : state_(state) {
    for (const auto& [name, value] : state.flags.items()) {
      if (!value.is_string()) continue;
      std::string key = name;
      std::replace(key.begin(), key.end(), '-', '_');
      flags_[key] = value;
    }
    position_ = state.position.value_or(RunPosition{});
  }

  PythonValue make() const {
    PythonValue::Fields fields = {{"args", PythonValue::name_space(args())},
                                  {"checkpoint_version", 3.0},
                                  {"iteration", position_.iteration},
                                  {"num_floating_point_operations_so_far", 0},
                                  {"content_metadata", content()}};
    if (state_.optimizer) {
      fields.emplace_back("optimizer",
                          PythonValue::fields({{"optimizer", PythonValue::fields({{"param_groups", groups()}})},
                                               {"param_state_sharding_type", "fully_reshardable"}}));
      fields.emplace_back("opt_param_scheduler", schedule());
    }
    // What open_megatron_of_weft reads; Megatron does not look at it.
    if (!state_.description.is_null())
      fields.emplace_back("weft", PythonValue::fields({{"model", PythonValue::from(state_.description)},
                                                       {"arguments", PythonValue::from(state_.flags)}}));
    return PythonValue::fields(std::move(fields));
  }

 private:
  std::optional<double> number(const char* flag) const {
    double value = 0;
    const auto at = flags_.find(flag);
    if (at == flags_.end() || !parse_double(at->get<std::string>(), value)) return std::nullopt;
    return value;
  }
  double real(const char* flag, double standard) const { return number(flag).value_or(standard); }
  std::int64_t count(const char* flag, std::int64_t standard) const {
    return static_cast<std::int64_t>(real(flag, static_cast<double>(standard)));
  }
  std::string text(const char* flag, const std::string& standard) const {
    const auto at = flags_.find(flag);
    return at != flags_.end() && !at->get<std::string>().empty() ? at->get<std::string>() : standard;
  }

  PythonValue::Fields args() const {
    PythonValue::Fields args;
    for (const auto& [name, value] : state_.model_args.items()) args.emplace_back(name, PythonValue::from(value));
    for (const char* const name : run_args) {
      const auto at = flags_.find(name);
      if (at == flags_.end()) continue;
      std::int64_t whole = 0;
      const std::string value = at->get<std::string>();
      if (value.empty())
        args.emplace_back(name, PythonValue());
      else if (parse_int(value, whole))
        args.emplace_back(name, whole);
      else if (const std::optional<double> real = number(name))
        args.emplace_back(name, *real);
      else
        args.emplace_back(name, value);
    }
    const PythonValue::Fields rest = {
        {"tensor_model_parallel_size", 1},
        {"pipeline_model_parallel_size", 1},
        {"expert_model_parallel_size", 1},
        {"expert_tensor_parallel_size", 1},
        {"context_parallel_size", 1},
        {"data_parallel_size", 1},
        {"world_size", 1},
        {"params_dtype", PythonValue::global("torch", state_.bf16 ? "bfloat16" : "float32")},
        {"bf16", state_.bf16},
        {"fp16", false},
        {"optimizer", text("optimizer", "adam")},
        {"use_distributed_optimizer", true},
        {"ckpt_format", "torch_dist"},
        {"dist_ckpt_optim_fully_reshardable", true},
        // What is not here, Megatron does not look for.
        {"no_save_rng", true},
        {"no_save_optim", !state_.optimizer},
        {"iteration", position_.iteration},
        {"consumed_train_samples", position_.consumed_samples},
        {"consumed_valid_samples", 0},
        {"skipped_train_samples", 0}};
    args.insert(args.end(), rest.begin(), rest.end());
    return args;
  }

  static PythonValue content() {
    return PythonValue::fields({{"distrib_optim_sharding_type", "fully_reshardable"},
                                {"distrib_optim_fully_reshardable_mem_efficient", false},
                                {"singleton_local_shards", false},
                                {"chained_optim_avoid_prefix", true}});
  }

  // Megatron finds its groups by what they multiply and of what they are.
  PythonValue groups() const {
    const double lr = real("lr", 0), least = real("min_lr", 0), decay = real("weight_decay", 0);
    PythonValue::Values groups;
    for (const bool of_experts : {false, true}) {
      for (const double decay_factor : {1.0, 0.0}) {
        groups.push_back(
            PythonValue::fields({{"lr", lr},
                                 {"weight_decay", decay_factor * decay},
                                 {"betas", PythonValue::tuple({real("adam_beta1", 0.9), real("adam_beta2", 0.95)})},
                                 {"eps", real("adam_eps", 1e-8)},
                                 {"bias_correction", true},
                                 {"wd_mult", decay_factor},
                                 {"lr_mult", 1.0},
                                 {"is_expert_parallel", of_experts},
                                 {"is_decoupled_lr", false},
                                 {"max_lr", lr},
                                 {"min_lr", least},
                                 {"step", position_.optimizer_steps},
                                 {"params", PythonValue::list({})}}));
      }
    }
    return PythonValue::list(std::move(groups));
  }

  // Counted in samples.
  PythonValue schedule() const {
    const std::int64_t batch = count("global_batch_size", 1);
    const std::int64_t iterations = count("train_iters", position_.iteration);
    const std::int64_t decay = count("lr_decay_iters", 0);
    return PythonValue::fields({{"max_lr", real("lr", 0)},
                                {"lr_warmup_steps", count("lr_warmup_iters", 0) * batch},
                                {"num_steps", position_.consumed_samples},
                                {"lr_decay_style", text("lr_decay_style", "linear")},
                                {"lr_decay_steps", (decay > 0 ? decay : iterations) * batch},
                                {"min_lr", real("min_lr", 0)},
                                {"start_wd", real("start_weight_decay", real("weight_decay", 0))},
                                {"end_wd", real("end_weight_decay", real("weight_decay", 0))},
                                {"wd_incr_style", text("weight_decay_incr_style", "constant")},
                                {"wd_incr_steps", iterations * batch}});
  }

  const SharedState& state_;
  Json flags_ = Json::object();
  RunPosition position_;
};

}  // namespace

PythonValue shared_state(const SharedState& state) { return State(state).make(); }

}  // namespace weft
