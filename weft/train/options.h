// The options of `weft train`, `plan`, `check` and `verify`: plain data, filled from flags and TOML files.
//
//   TrainOptions options;
//   FlagTable flags("weft train");
//   add_train_flags(flags, options);              // a subcommand may add its own flags here
//   parse_train_options(flags, options, words);   // files, command line, derived values, all checks
//   if (flags.help_wanted()) ...                  // then nothing has been checked
//
// Fields are named after their flags (docs/options.md). A 0 or an empty text marked "derived" is filled by resolve().
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/checkpoint/stored_type.h"
#include "weft/data/tokenizer_choice.h"
#include "weft/model/config.h"
#include "weft/model/context_ranks.h"
#include "weft/model/sharding_strategy.h"
#include "weft/optim/optimizer.h"
#include "weft/optim/schedule.h"
#include "weft/plan/orders/order.h"
#include "weft/plan/recomputation.h"
#include "weft/train/flags.h"
#include "weft/train/layer_choice.h"
#include "weft/train/strictness.h"

namespace weft {

enum class PositionKind : std::uint8_t { none, rope, yarn };

struct ModelOptions {
  std::string hf;       // a directory that decides all of this
  std::string pattern;  // derived
  // The transformer's form of a pattern (pattern_of_layers).
  enum class AttentionVariant : std::uint8_t { none, gated_delta_net, dsa };
  std::int64_t num_layers = 0, mtp_num_layers = 0;
  bool multi_latent_attention = false;
  AttentionVariant experimental_attention_variant = AttentionVariant::none;
  LayerChoice moe_layer_freq{.number = 1, .list = {}, .text = "1"};             // layers with experts
  LayerChoice linear_attention_freq;                                            // gated delta nets
  std::int64_t hidden_size = 128, ffn_hidden_size = 0;                          // derived: 4 hidden
  std::int64_t num_attention_heads = 4, num_query_groups = 0, kv_channels = 0;  // derived
  bool group_query_attention = false;
  bool qk_layernorm = false, add_qkv_bias = false, add_bias_linear = false;
  bool softmax_sinks = false;
  PositionKind positions = PositionKind::rope;
  bool rotary_interleaved = false, use_rope_scaling = false;
  double rotary_base = 10000, rotary_percent = 1, rope_scaling_factor = 8;
  std::int64_t window_size = 0;              // keys that a query sees, including its own; 0: all earlier ones
  std::int64_t max_position_embeddings = 0;  // 0: no limit
  std::int64_t q_lora_rank = 0;              // 0: queries are projected directly
  std::int64_t kv_lora_rank = 32, qk_head_dim = 128, qk_pos_emb_head_dim = 64, v_head_dim = 128;
  std::int64_t dsa_indexer_n_heads = 64, dsa_indexer_head_dim = 128, dsa_indexer_topk = 2048;
  double dsa_indexer_loss_coeff = 0;
  double norm_epsilon = 1e-5;
  bool apply_layernorm_1p = false;
  // YaRN; formulas in docs/numerics.md
  double rotary_scaling_factor = 1, mscale = 1, mscale_all_dim = 0, beta_fast = 32, beta_slow = 1;
  std::int64_t original_max_position_embeddings = 4096;
  ActivationKind activation = ActivationKind::swiglu;
  double activation_func_clamp_value = 0, glu_linear_offset = 0;  // 0: no clamp
  bool tie_embeddings = false;
  double init_method_std = 0.02;
  double mtp_loss_scaling_factor = 0.1;

  std::int64_t num_experts = 0, moe_ffn_hidden_size = 0;  // derived
  std::int64_t moe_router_topk = 2, moe_router_num_groups = 0, moe_router_group_topk = 0;
  RouterSpec::Score moe_router_score_function = RouterSpec::Score::softmax;
  bool moe_router_pre_softmax = false;
  std::optional<bool> moe_router_norm_topk;  // derived
  double moe_router_topk_scaling_factor = 1;
  std::vector<std::string> moe_router_load_balancing_type{"aux_loss"}, moe_aux_loss_coeff{"0"};
  double moe_z_loss_coeff = 0;
  bool moe_router_enable_expert_bias = false;
  double moe_router_bias_update_rate = 1e-3;
  double moe_expert_capacity_factor = 0;
  DropChoices::Policy moe_token_drop_policy = DropChoices::Policy::probabilities;
  bool moe_pad_expert_input_to_capacity = false;
  bool moe_router_force_load_balancing = false;
  std::int64_t moe_shared_expert_intermediate_size = 0;
  bool moe_shared_expert_gate = false;
  std::int64_t moe_latent_size = 0;

  bool attention_output_gate = false;
  std::int64_t mamba_state_dim = 128, mamba_head_dim = 64, mamba_num_heads = 0, mamba_num_groups = 0;  // derived
  std::int64_t mamba_conv_kernel_dim = 4, mamba_chunk_size = 128;
  std::int64_t linear_num_value_heads = 0, linear_num_key_heads = 0;  // derived
  std::int64_t linear_value_head_dim = 128, linear_key_head_dim = 128, linear_conv_kernel_dim = 4;
};

struct LayoutOptions {
  std::int64_t ranks = 0;  // derived: the launcher's, or 1
  std::int64_t tensor_model_parallel_size = 1, context_parallel_size = 1, pipeline_model_parallel_size = 1;
  std::int64_t expert_model_parallel_size = 1;
  std::int64_t expert_tensor_parallel_size = 0;  // derived: the tensor ranks
  bool sequence_parallel = false;
  std::vector<std::string> cp_comm_type{"p2p"};                  // of all layers, or one for each
  std::vector<std::string> hierarchical_context_parallel_sizes;  // of a2a+p2p: its two sizes
  std::int64_t decoder_first_pipeline_num_layers = 0, decoder_last_pipeline_num_layers = 0;          // 0: even
  std::int64_t num_layers_per_virtual_pipeline_stage = 0, num_virtual_stages_per_pipeline_rank = 0;  // 0: not given
  std::int64_t microbatch_group_size_per_virtual_pipeline_stage = 0;  // 0: the number of stages
  std::string pipeline_model_parallel_layout;                         // "Et*3|t*5|m|L"
  bool use_tp_pp_dp_mapping = false;
  std::int64_t launched_ranks = 1;         // no flag: number of processes that the launcher started
  std::int64_t rank = -1, world_size = 0;  // of processes started without a launcher; -1, 0: the launcher's

  // 0 where a size is below 1.
  std::int64_t data_parallel_size() const {
    const std::int64_t others = tensor_model_parallel_size * context_parallel_size * pipeline_model_parallel_size;
    return others > 0 ? ranks / others : 0;
  }
};

enum class GradientType : std::uint8_t { automatic, fp32, bf16 };

struct ShardingOptions {
  std::optional<ShardingStrategy> strategy;  // absent: see strategy_of
  bool use_distributed_optimizer = false, use_megatron_fsdp = false;
  std::int64_t suggested_communication_unit_size = 0;  // 0: derived where the plan is made
  bool fsdp_double_buffer = false, fine_grained_param_gather = true;
  GradientType main_grads_dtype = GradientType::automatic, grad_comm_dtype = GradientType::automatic;
  std::int64_t num_distributed_optimizer_instances = 1;
  ShardingStrategy outer_strategy = ShardingStrategy::no_shard;  // over instances: this or optim
};

struct BatchOptions {
  std::int64_t seq_length = 256, micro_batch_size = 4, global_batch_size = 0;  // derived: micro x data parallel
  std::int64_t train_iters = 0, train_samples = 0;                             // iterations are derived from samples
  bool calculate_per_token_loss = false;
};

struct DataOptions {
  std::vector<std::string> data_path;                         // [weight] prefix ...
  std::vector<std::string> train_data_path, valid_data_path;  // instead of data_path and split
  std::string split = "969,30,1";
  bool mock_data = false;
  std::int64_t stories = 0;   // bytes; derived if no other source is given
  std::string text;           // a file
  TokenizerChoice tokenizer;  // its type is derived, unless it is read from a file or the model is loaded
  std::int64_t make_vocab_size_divisible_by = 128;
  bool reset_position_ids = false, reset_attention_mask = false, eod_mask_loss = false;
  std::int64_t seed = 1234;
  std::int64_t eval_interval = 1000, eval_iters = 100;
};

struct OptimizerOptions {
  OptimizerKind optimizer = OptimizerKind::adam;
  double lr = 1e-3, min_lr = 0;
  DecayStyle lr_decay_style = DecayStyle::linear;
  WsdStyle lr_wsd_decay_style = WsdStyle::exponential;
  std::int64_t lr_decay_iters = 0, lr_decay_samples = 0;  // 0: as long as the run
  std::int64_t lr_warmup_iters = 0, lr_warmup_samples = 0;
  std::int64_t lr_wsd_decay_iters = 0, lr_wsd_decay_samples = 0;
  std::optional<double> lr_warmup_fraction;
  double lr_warmup_init = 0;
  double weight_decay = 0.01;
  std::optional<double> start_weight_decay, end_weight_decay;  // derived: weight_decay
  WeightDecayStyle weight_decay_incr_style = WeightDecayStyle::constant;
  bool decay_all = false;
  double adam_beta1 = 0.9, adam_beta2 = 0.95, adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  double clip_grad = 1;                   // 0: off
  std::int64_t skip_nonfinite_steps = 0;  // in a row
};

struct LoggingOptions {
  std::int64_t log_interval = 100;
  std::string metrics, tensorboard_dir;
  bool moe_per_layer = false;
  std::vector<std::string> sample;  // prompts
  std::int64_t sample_length = 200;
  double sample_temperature = 0.8;
};

struct CheckpointOptions {
  std::string save, load;          // folders of checkpoints
  std::int64_t save_interval = 0;  // in iterations; 0: at the end
  std::int64_t keep_last = 0;      // checkpoints; 0: all
  std::int64_t save_retain_interval = 0;
  std::int64_t ckpt_step = 0;  // the iteration to load; 0: the last
  bool load_last_complete = false, finetune = false, no_load_optim = false, no_save_optim = false;
  bool use_checkpoint_args = false, load_main_params_from_ckpt = false;
  Strictness dist_ckpt_strictness = Strictness::assume_ok_unexpected;
  std::int64_t exit_interval = 0;  // in iterations; 0: none
  double exit_duration_in_mins = 0;
  bool exit_signal_handler = false;
  bool async_save = false;
  std::string save_hf;                 // a folder to write at the end
  std::string save_fallback;           // another, if that fails
  std::string hf_family;               // of these folders; "": derived
  std::optional<StoredType> hf_dtype;  // of their tensors; absent: as they were read, or what the run computes in
};

enum class ExecutorKind : std::uint8_t { serial, parallel };
enum class GraphKind : std::uint8_t { none, full };
enum class BackendKind : std::uint8_t { automatic, nccl };
enum class AttentionBackwardKind : std::uint8_t { deterministic, fastest };

struct ExecutionOptions {
  std::int64_t threads = 0;  // 0: one per core
  ExecutorKind executor = ExecutorKind::parallel;
  std::string device = "auto";  // auto: a GPU that can train the model, or else the CPU
  GraphKind cuda_graph = GraphKind::full;
  BackendKind distributed_backend = BackendKind::automatic;
  AttentionBackwardKind attention_backward = AttentionBackwardKind::deterministic;
  bool deterministic_mode = false;
  bool ep_overlap_early_attn_memory_release = false;
  std::string inject_fault;
  std::int64_t block = 1;  // no flag: of PlanOptions, for verify's oracle
  OrderKind pipeline_order = OrderKind::automatic;
  bool overlap_moe_expert_parallel_comm = false, delay_wgrad_compute = false, overlap_optimizer = false;
  bool overlap_dispatch_backward_with_experts_wgrad = false;
  double distributed_timeout_minutes = 10;
  std::string emulate_network;  // "latency=100us,bandwidth=2GB/s"
  std::string trace, timeline;  // files to write about the last step
  bool digest = false;
};

enum class RecomputeGranularity : std::uint8_t { none, full, selective };
enum class RecomputeMethod : std::uint8_t { none, uniform, block };

// What the backward pass computes again.
struct RecomputeOptions {
  RecomputeGranularity granularity = RecomputeGranularity::none;
  RecomputeMethod method = RecomputeMethod::none;
  std::int64_t num_layers = 0;       // 0: not given
  std::vector<std::string> modules;  // empty: core_attn
};

struct TrainOptions {
  ModelOptions model;
  LayoutOptions layout;
  ShardingOptions sharding;
  BatchOptions batch;
  DataOptions data;
  OptimizerOptions optimizer;
  DType dtype = DType::f32;
  bool grad_reduce_in_bf16 = false;
  LoggingOptions logging;
  CheckpointOptions checkpoint;
  ExecutionOptions execution;
  RecomputeOptions recompute;

  std::vector<std::string> config, explain;
};

// The model if neither a pattern nor a number of layers is given.
inline constexpr const char* default_pattern = "[*-][*E][*E][*E]";

void add_train_flags(FlagTable& flags, TrainOptions& options);
// Parts of add_train_flags.
void add_layer_flags(FlagTable& flags, ModelOptions& options);  // those that make a pattern, without --num-experts
void add_model_flags(FlagTable& flags, ModelOptions& options);
void add_optimizer_flags(FlagTable& flags, OptimizerOptions& options);
void add_recompute_flags(FlagTable& flags, RecomputeOptions& options);
void add_sharding_flags(FlagTable& flags, ShardingOptions& options);
void add_foreign_flags(FlagTable& flags);  // of Megatron's: accepted with a note, or refused with a reason

// Reads files and command line, resolves and checks. With --explain the values are not checked, so that a wrong
// configuration can be explained. launched_ranks: the number of processes that a launcher started (1: none); called once
// the flags are known.
void parse_train_options(FlagTable& flags, TrainOptions& options, std::span<const std::string> words,
                         const std::function<std::int64_t()>& launched_ranks = {});

// Fills every derived value that is not set; returns which, and why.
struct Derivation {
  std::string flag, reason;
};
std::vector<Derivation> resolve(TrainOptions& options);

// The pattern of --num-layers and the flags that choose the kinds of layers: "[*-][*E][*E]/[*E]".
std::string pattern_of_layers(const ModelOptions& model);
// What is wrong with these flags, alone and together with --pattern; for a resolved model that is built from flags.
std::vector<std::string> find_layer_problems(const FlagTable& flags, const ModelOptions& model, bool pattern_given);

// The rules that resolved options break, each as "--flag value: rule; what to do".
std::vector<std::string> find_problems(const TrainOptions& options);
// The flags that the user has set and that have no effect in this model or run, and why.
std::vector<std::string> find_idle_flags(const FlagTable& flags, const TrainOptions& options);
// Why --overlap-moe-expert-parallel-comm, or --overlap-dispatch-backward-with-experts-wgrad, has no effect in resolved
// options, and what would change that; empty where it has one. A note, not an error: the same script may run with other
// numbers of ranks and batches.
std::vector<std::string> overlap_notes(const TrainOptions& options);
std::vector<std::string> layout_notes(const TrainOptions& options);
// The strategy that the flags choose, and the same for one that divides over no other rank.
ShardingStrategy strategy_of(const TrainOptions& options);
std::vector<std::string> sharding_notes(const TrainOptions& options);
// --cp-comm-type, and what is wrong with it.
std::vector<ContextTransfer> context_transfers(const TrainOptions& options);
std::int64_t context_head_ranks(const TrainOptions& options);  // LayoutSizes::cp_heads
std::vector<std::string> find_context_problems(const TrainOptions& options);
void throw_problems(const std::vector<std::string>& problems);  // one UserError with all of them; none: returns
void check_options(const TrainOptions& options);

// What is wrong with them, why a flag that is set has no effect ("": it has one), what a plan makes of them, and how they were
// written ("": nothing is computed again).
std::vector<std::string> find_recompute_problems(const RecomputeOptions& options);
std::string why_recomputing_is_idle(const Flag& flag, const RecomputeOptions& options, const std::string& pattern,
                                    bool shared_experts);
Recomputation recomputation_of(const RecomputeOptions& options);
std::string recompute_text(const RecomputeOptions& options);

// The coefficients of the losses that balance experts; returns what is wrong with the options, if anything is.
std::optional<std::string> balance_losses(const ModelOptions& model, BalanceSpec& balance);
BalanceSpec balance_spec(const ModelOptions& model);

OptimizerSpec optimizer_spec(const OptimizerOptions& options);
// All of these need resolved options; model_config also needs a model that is built from flags, not loaded by --hf.
ModelConfig model_config(const TrainOptions& options);
Precision precision_of(const TrainOptions& options);
LearningRateSpec learning_rate_spec(const TrainOptions& options);
WeightDecaySpec weight_decay_spec(const TrainOptions& options);
// Of a pattern over the stages of the layout.
SplitOptions split_options(const TrainOptions& options, const std::string& pattern);
std::int64_t micro_batches(const TrainOptions& options);  // per data-parallel rank and step

std::string options_markdown();  // docs/options.md

}  // namespace weft
