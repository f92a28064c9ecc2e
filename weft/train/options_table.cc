// The flags of `weft train`: names are Megatron's where Megatron has the flag.
#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/train/options.h"

namespace weft {
namespace {

void add_model_flags(FlagTable& flags, ModelOptions& model) {
  flags.section("Model");
  flags
      .add("--pattern", model.pattern, "TEXT",
           "The layers: M Mamba-2, G gated delta net, * attention, + multi-latent attention, D its sparse form, - MLP, "
           "E "
           "experts, [..] a group, | between stages, / before each depth of multi-token prediction.")
      .alias("--hybrid-layer-pattern")
      .alias("--hybrid-override-pattern")
      .standard(default_pattern);
  flags
      .add("--num-layers", model.num_layers, "N",
           "Without a pattern: so many [*-], or [*E] where --num-experts is given. With one: must be its number of "
           "layers.")
      .at_least(1)
      .limited_to(100000)
      .standard("the pattern's");
  flags.add("--hf", model.hf, "DIR", "Take model and weights from a Hugging Face directory instead of model flags.");
  flags.add("--hidden-size", model.hidden_size, "N", "Width of the residual stream.").at_least(1);
  flags.add("--ffn-hidden-size", model.ffn_hidden_size, "N", "Inner width of an MLP.")
      .at_least(1)
      .standard("4 x hidden-size");
  flags
      .choice("--activation", model.activation,
              {{"swiglu", ActivationKind::swiglu},
               {"squared-relu", ActivationKind::squared_relu},
               {"gelu", ActivationKind::gelu},
               {"gelu-erf", ActivationKind::gelu_erf},
               {"quick-geglu", ActivationKind::quick_geglu}},
              "Activation of MLP and experts; gelu is the tanh form, gelu-erf the exact one, quick-geglu a gated one.")
      .means("--swiglu", "swiglu")
      .means("--squared-relu", "squared-relu")
      .means("--gelu", "gelu")
      .means("--quick-geglu", "quick-geglu");
  flags
      .add("--activation-func-clamp-value", model.activation_func_clamp_value, "X",
           "Of swiglu and quick-geglu: the gate is at most X, the other factor between -X and X.")
      .above(0)
      .standard("no clamp");
  flags.add("--glu-linear-offset", model.glu_linear_offset, "X",
            "Of quick-geglu: added to the factor beside the gate.");
  flags.add("--add-bias-linear", model.add_bias_linear, "Biases in attention, MLP, experts and router.")
      .negation("--disable-bias-linear");
  flags.add("--norm-epsilon", model.norm_epsilon, "X", "Added to the mean square in RMSNorm.").above(0);
  flags.add("--apply-layernorm-1p", model.apply_layernorm_1p, "Norm weights are stored minus one (zero-centred).");
  flags.add("--tie-embeddings", model.tie_embeddings, "The head uses the embedding's weights.")
      .negation("--untie-embeddings-and-output-weights");
  flags.add("--init-method-std", model.init_method_std, "X", "Standard deviation of initial weights.").at_least(0);
  flags
      .add("--mtp-loss-scaling-factor", model.mtp_loss_scaling_factor, "X",
           "What the mean loss of the MTP depths counts beside the main loss.")
      .above(0);
  flags.add("--max-position-embeddings", model.max_position_embeddings, "N", "Longest sequence that the model allows.")
      .at_least(1)
      .standard("no limit");
}

// "128": a query sees 128 keys, itself included. "127,0" is Megatron's way to say the same: 127 before it, none after.
void store_window(const std::string& text, std::int64_t& window) {
  const auto parts = split(text, ',');
  std::int64_t before = 0, after = 0;
  const bool pair = parts.size() == 2;
  if (parts.size() > 2 || !parse_int(trim(parts[0]), before) || (pair && !parse_int(trim(parts[1]), after)))
    throw UserError("--window-size: '{}' is neither N nor BEFORE,0", text);
  if (after != 0) throw UserError("--window-size {}: attention is causal, so no key behind a query is seen", text);
  if (!pair && before < 1) throw UserError("--window-size: {} is out of range; it must be at least 1", before);
  window = !pair ? before : before < 0 ? 0 : before + 1;
}

void add_attention_flags(FlagTable& flags, ModelOptions& model) {
  flags.section("Attention");
  flags.add("--num-attention-heads", model.num_attention_heads, "N", "Query heads.").at_least(1);
  flags.add("--num-query-groups", model.num_query_groups, "N", "Key and value heads; needs no --group-query-attention.")
      .at_least(1)
      .standard("num-attention-heads; 1 with --group-query-attention");
  flags.add("--group-query-attention", model.group_query_attention, "Query heads share key and value heads.");
  flags.add("--kv-channels", model.kv_channels, "N", "Width of a head.")
      .at_least(1)
      .standard("hidden-size / num-attention-heads");
  flags.add("--qk-layernorm", model.qk_layernorm, "Normalise every query and key head.").no_form();
  flags.add("--attention-output-gate", model.attention_output_gate, "Multiply the output by a sigmoid of its own.");
  flags.add("--add-qkv-bias", model.add_qkv_bias, "Biases of query, key and value only.").no_form();
  flags
      .custom(
          "--window-size", "N", [&model](const std::string& text) { store_window(text, model.window_size); },
          [&model] { return model.window_size == 0 ? "" : fmt::format("{}", model.window_size); },
          "Sliding window: keys that a query sees, itself included. BEFORE,0 as in Megatron means BEFORE + 1.")
      .standard("all keys before it");
  flags
      .choice("--position-embedding-type", model.positions,
              {{"rope", PositionKind::rope}, {"none", PositionKind::none}, {"yarn", PositionKind::yarn}},
              "How attention knows positions.")
      .means("--no-rope", "none")
      .means("--use-rotary-position-embeddings", "rope")
      .lacks("learned_absolute", "Weft has no learned positions")
      .lacks("relative", "Weft has no relative position bias")
      .lacks("mrope", "Weft has no multimodal rotary positions yet");
  flags.add("--rotary-base", model.rotary_base, "X", "Base of the rotary frequencies.").above(0);
  flags.add("--rotary-percent", model.rotary_percent, "X", "Share of a head that turns.").above(0).at_most(1);
  flags.add("--rotary-interleaved", model.rotary_interleaved, "Pair neighbours instead of halves of a head.");
  flags.add("--use-rope-scaling", model.use_rope_scaling, "Llama 3's scaling of frequencies, from 8192 positions.");
  flags.add("--rope-scaling-factor", model.rope_scaling_factor, "X", "Its factor.").above(0);
  flags
      .add("--rotary-scaling-factor", model.rotary_scaling_factor, "X",
           "YaRN: how many times longer than in its first training a sequence may be.")
      .above(0);
  flags
      .add("--original-max-position-embeddings", model.original_max_position_embeddings, "N",
           "YaRN: positions of the first training.")
      .at_least(1);
  flags.add("--beta-fast", model.beta_fast, "X", "YaRN: dims that make more turns than this stay as they are.")
      .above(0);
  flags.add("--beta-slow", model.beta_slow, "X", "YaRN: dims that make fewer turns are scaled fully.").above(0);
  flags.add("--mscale", model.mscale, "X", "YaRN: cosine and sine are multiplied by m(mscale) / m(mscale-all-dim).")
      .at_least(0);
  flags.add("--mscale-all-dim", model.mscale_all_dim, "X", "YaRN: its second part.").at_least(0);
  flags
      .choice("--softmax-type", model.softmax_sinks, {{"vanilla", false}, {"learnable", true}},
              "learnable: a logit a head in the softmax's denominator, a sink without a value.")
      .lacks("off-by-one", "Weft has sinks that are learned; use learnable");
}

void add_latent_attention_flags(FlagTable& flags, ModelOptions& model) {
  flags.section("Multi-latent attention");
  flags.add("--q-lora-rank", model.q_lora_rank, "N", "Queries go through a latent of this width.")
      .at_least(1)
      .standard("queries are projected directly");
  flags.add("--kv-lora-rank", model.kv_lora_rank, "N", "Width of the latent of keys and values.").at_least(1);
  flags.add("--qk-head-dim", model.qk_head_dim, "N", "Elements of a query or key that do not turn.").at_least(1);
  flags
      .add("--qk-pos-emb-head-dim", model.qk_pos_emb_head_dim, "N",
           "Elements of a query or key that turn with the position; all heads share those of the key.")
      .at_least(2);
  flags.add("--v-head-dim", model.v_head_dim, "N", "Elements of a value.").at_least(1);
  flags.add("--dsa-indexer-n-heads", model.dsa_indexer_n_heads, "N", "Sparse attention (D): heads of the indexer.")
      .at_least(1);
  flags.add("--dsa-indexer-head-dim", model.dsa_indexer_head_dim, "N", "Sparse attention (D): elements of such a head.")
      .at_least(1);
  flags.add("--dsa-indexer-topk", model.dsa_indexer_topk, "K", "Sparse attention (D): keys that a query sees.")
      .at_least(1);
  flags
      .add("--dsa-indexer-loss-coeff", model.dsa_indexer_loss_coeff, "X",
           "Sparse attention (D): the indexer learns to choose as attention does, over the chosen keys; all of them "
           "where "
           "topk is at least seq-length. 0: it is not trained.")
      .at_least(0);
}

void add_expert_flags(FlagTable& flags, ModelOptions& model) {
  flags.section("Experts");
  flags.add("--num-experts", model.num_experts, "N", "Experts of a layer E.")
      .at_least(1)
      .standard("8 where the pattern has E");
  flags.add("--moe-ffn-hidden-size", model.moe_ffn_hidden_size, "N", "Inner width of an expert.")
      .at_least(1)
      .standard("ffn-hidden-size");
  flags.add("--moe-router-topk", model.moe_router_topk, "K", "Experts that a token goes to.").at_least(1);
  flags
      .choice("--moe-router-score-function", model.moe_router_score_function,
              {{"softmax", RouterSpec::Score::softmax}, {"sigmoid", RouterSpec::Score::sigmoid}},
              "How router logits become scores.")
      .lacks("sqrtsoftplus", "Weft has no such score");
  flags.add("--moe-router-pre-softmax", model.moe_router_pre_softmax, "Softmax over all experts, before the choice.");
  flags.add("--moe-router-norm-topk", model.moe_router_norm_topk, "Divide the chosen scores by their sum.")
      .no_form()
      .standard("true for sigmoid with topk > 1, and for softmax after the choice");
  flags.add("--moe-router-topk-scaling-factor", model.moe_router_topk_scaling_factor, "X", "Factor of the weights.")
      .above(0);
  flags.add("--moe-router-num-groups", model.moe_router_num_groups, "N", "Groups of experts to choose from first.")
      .at_least(1)
      .standard("none");
  flags.add("--moe-router-group-topk", model.moe_router_group_topk, "N", "Groups that stay in the choice.")
      .at_least(1)
      .standard("none");
  flags
      .add("--moe-shared-expert-intermediate-size", model.moe_shared_expert_intermediate_size, "N",
           "Inner width of the shared expert.")
      .at_least(1)
      .standard("no shared expert");
  flags.add("--moe-latent-size", model.moe_latent_size, "N", "Width in which tokens go to the experts and come back.")
      .at_least(1)
      .standard("hidden-size");
  flags.add("--moe-shared-expert-gate", model.moe_shared_expert_gate,
            "Multiply the shared expert's output by a sigmoid of its own.");
}

void add_recurrent_flags(FlagTable& flags, ModelOptions& model) {
  flags.section("Recurrent layers");
  flags.add("--mamba-state-dim", model.mamba_state_dim, "N", "M: state of a channel.").at_least(1);
  flags.add("--mamba-head-dim", model.mamba_head_dim, "N", "M: width of a head.").at_least(1);
  flags.add("--mamba-num-heads", model.mamba_num_heads, "N", "M: heads.")
      .at_least(1)
      .standard("2 x hidden-size / mamba-head-dim");
  flags.add("--mamba-num-groups", model.mamba_num_groups, "N", "M: groups of heads that share B and C.")
      .at_least(1)
      .standard("8, or the heads if they are fewer");
  flags.add("--mamba-conv-kernel-dim", model.mamba_conv_kernel_dim, "N", "M: taps of the convolution.")
      .at_least(1)
      .at_most(16);
  flags
      .add("--mamba-chunk-size", model.mamba_chunk_size, "N",
           "M: tokens of a chunk of the scan; another size rounds differently.")
      .at_least(1);
  flags.add("--linear-num-value-heads", model.linear_num_value_heads, "N", "G: value heads.")
      .at_least(1)
      .standard("2 x hidden-size / linear-value-head-dim");
  flags.add("--linear-num-key-heads", model.linear_num_key_heads, "N", "G: query and key heads.")
      .at_least(1)
      .standard("linear-num-value-heads / 2");
  flags.add("--linear-value-head-dim", model.linear_value_head_dim, "N", "G: width of a value head.").at_least(1);
  flags.add("--linear-key-head-dim", model.linear_key_head_dim, "N", "G: width of a query or key head.").at_least(1);
  flags.add("--linear-conv-kernel-dim", model.linear_conv_kernel_dim, "N", "G: taps of the convolution.")
      .at_least(1)
      .at_most(16);
}

// How a model is trained, not what it is: a Hugging Face model takes them too.
void add_balance_flags(FlagTable& flags, ModelOptions& model) {
  flags.section("Balance of experts");
  flags.add("--moe-router-load-balancing-type", model.moe_router_load_balancing_type, "KIND",
            "Losses that balance experts: aux_loss, seq_aux_loss, global_aux_loss (several: one coefficient each), or "
            "none.");
  flags.add("--moe-aux-loss-coeff", model.moe_aux_loss_coeff, "X", "Their coefficients, in the same order.");
  flags.add("--moe-z-loss-coeff", model.moe_z_loss_coeff, "X", "Coefficient of the router's z-loss.").at_least(0);
  flags.add("--moe-router-enable-expert-bias", model.moe_router_enable_expert_bias,
            "A bias of the choice that follows the experts' load, once a step; for sigmoid scores.");
  flags.add("--moe-router-bias-update-rate", model.moe_router_bias_update_rate, "X", "How far it moves.").at_least(0);
  flags
      .add("--moe-expert-capacity-factor", model.moe_expert_capacity_factor, "X",
           "An expert takes at most X times the average number of tokens of a micro-batch; the others are dropped.")
      .standard("none: no token is dropped");
  flags.choice("--moe-token-drop-policy", model.moe_token_drop_policy,
               {{"probs", DropChoices::Policy::probabilities}, {"position", DropChoices::Policy::position}},
               "Which tokens an expert that is full keeps: those of the largest weight, or the first.");
  flags.add("--moe-pad-expert-input-to-capacity", model.moe_pad_expert_input_to_capacity,
            "Give every expert as many rows as its capacity.");
  flags.add("--moe-router-force-load-balancing", model.moe_router_force_load_balancing,
            "Route by fixed random numbers instead of the router's logits, to measure speed at even load.");
}

void add_batch_flags(FlagTable& flags, BatchOptions& batch) {
  flags.section("Batch and length");
  flags.add("--seq-length", batch.seq_length, "N", "Tokens of a sequence.").at_least(1);
  flags.add("--micro-batch-size", batch.micro_batch_size, "N", "Sequences that one rank computes at once.").at_least(1);
  flags.add("--global-batch-size", batch.global_batch_size, "N", "Sequences of one step, over all ranks.")
      .at_least(1)
      .standard("micro-batch-size x data-parallel ranks");
  flags.add("--train-iters", batch.train_iters, "N", "Steps.")
      .at_least(1)
      .standard("train-samples / global-batch-size, or 200");
  flags.add("--train-samples", batch.train_samples, "N", "Sequences of the whole run, instead of --train-iters.")
      .at_least(1)
      .limited_to(1e15)
      .standard("none");
}

constexpr const char* no_tokenizer =
    "Weft reads no tokenizer's files; make token files with Megatron's tools and give --data-path PREFIX with "
    "--vocab-size N";

void add_data_flags(FlagTable& flags, DataOptions& data) {
  flags.section("Data");
  flags.add("--data-path", data.data_path, "PREFIX", "Megatron .bin/.idx files: one prefix, or WEIGHT PREFIX pairs.");
  flags.add("--train-data-path", data.train_data_path, "PREFIX",
            "Files of their own for training, instead of --data-path and --split.");
  flags.add("--valid-data-path", data.valid_data_path, "PREFIX", "Those for validation, beside --train-data-path.");
  flags.add("--split", data.split, "A,B,C", "Shares of documents for training, validation and test.");
  flags.add("--mock-data", data.mock_data, "Counting documents in place of data.");
  flags.add("--stories", data.stories, "BYTES", "Text of the built-in story generator, so many bytes.")
      .at_least(1)
      .or_alone("4000000")
      .standard("4000000 where no other data is named");
  flags.add("--text", data.text, "FILE", "A plain text file.");
  flags
      .choice("--tokenizer-type", data.tokenizer_type,
              {{"ByteTokenizer", std::string("ByteTokenizer")}, {"NullTokenizer", std::string("NullTokenizer")}},
              "ByteTokenizer: a token a byte, 257 ids. NullTokenizer: data already is ids, vocab-size of them and one "
              "that ends a document.")
      .lacks("HuggingFaceTokenizer", no_tokenizer)
      .lacks("GPT2BPETokenizer", no_tokenizer)
      .lacks("Llama2Tokenizer", no_tokenizer)
      .lacks("GPTSentencePieceTokenizer", no_tokenizer)
      .lacks("SentencePieceTokenizer", no_tokenizer)
      .lacks("TikTokenizer", no_tokenizer)
      .standard("NullTokenizer where --vocab-size is given, else ByteTokenizer; with --hf none");
  flags.add("--vocab-size", data.vocab_size, "N", "Ids of the data, for NullTokenizer.")
      .at_least(1)
      .standard("the tokenizer's");
  flags
      .add("--make-vocab-size-divisible-by", data.make_vocab_size_divisible_by, "N",
           "Rows of embedding and head are rounded up to a multiple, in every layout the same.")
      .at_least(1);
  flags.add("--seed", data.seed, "N", "Decides initial weights and the order of samples.")
      .at_least(0)
      .at_most(4294967295.0)
      .limited_to(4294967295.0);
  flags.add("--eval-interval", data.eval_interval, "N", "Steps between validations, and one at the end; 0: none.")
      .at_least(0);
  flags.add("--eval-iters", data.eval_iters, "N", "Global batches of a validation.").at_least(0);
}

void add_logging_flags(FlagTable& flags, LoggingOptions& logging) {
  flags.section("Logging");
  flags.add("--log-interval", logging.log_interval, "N", "Steps between log lines.").at_least(1);
  flags.add("--metrics", logging.metrics, "FILE", "Write a JSON line a step.");
  flags.add("--tensorboard-dir", logging.tensorboard_dir, "DIR", "Write TensorBoard event files.");
  flags.add("--sample", logging.sample, "PROMPT", "Continue this text at each validation and at the end; repeatable.")
      .each()
      .may_be_empty();
  flags.add("--sample-length", logging.sample_length, "N", "Tokens of a continuation.").at_least(1);
  flags.add("--sample-temperature", logging.sample_temperature, "X", "0 takes the likeliest token.").at_least(0);
}

void add_checkpoint_flags(FlagTable& flags, CheckpointOptions& checkpoint) {
  flags.section("Checkpoints");
  flags.add("--save-hf", checkpoint.save_hf, "DIR",
            "With --hf: make this folder at the end, with the trained weights and everything else as it was there.");
}

}  // namespace

void add_train_flags(FlagTable& flags, TrainOptions& options) {
  flags.section("General");
  flags
      .add("--config", options.config, "FILE",
           "Read flags from a TOML file. Repeatable: a later file wins over an earlier one, the command line over all.")
      .each()
      .only_on_command_line();
  flags.add("--explain", options.explain, "NAME", "Say a flag's value, where it came from and what it means.")
      .each()
      .only_on_command_line();
  add_model_flags(flags, options.model);
  add_attention_flags(flags, options.model);
  add_latent_attention_flags(flags, options.model);
  add_expert_flags(flags, options.model);
  add_recurrent_flags(flags, options.model);
  add_balance_flags(flags, options.model);
  add_batch_flags(flags, options.batch);
  add_data_flags(flags, options.data);
  add_optimizer_flags(flags, options.optimizer);

  flags.section("Precision");
  flags
      .choice("--dtype", options.dtype, {{"f32", DType::f32}, {"bf16", DType::bf16}, {"f64", DType::f64}},
              "Type of weights and activations. With bf16 sums, gradients and the optimizer stay in float.")
      .means("--fp32", "f32")
      .means("--bf16", "bf16")
      .means("--fp64", "f64");
  flags.add("--grad-reduce-in-bf16", options.grad_reduce_in_bf16,
            "With bf16: keep the gradients of matrices in bf16, and exchange them so between ranks.");

  LayoutOptions& layout = options.layout;
  flags.section("Layout");
  flags.add("--ranks", layout.ranks, "N", "Ranks as threads of one process.")
      .at_least(1)
      .limited_to(1 << 20)
      .standard("the launcher's, or 1");
  flags
      .add("--rank", layout.rank, "R",
           "This process, started by hand, is rank R of --world-size; MASTER_ADDR and MASTER_PORT say where rank 0 is.")
      .at_least(0)
      .standard("the launcher's");
  flags.add("--world-size", layout.world_size, "N", "So many processes are started by hand.")
      .at_least(1)
      .standard("the launcher's");
  flags.add("--tensor-model-parallel-size", layout.tensor_model_parallel_size, "N", "Ranks that share a layer.")
      .at_least(1)
      .limited_to(1 << 20);
  flags.add("--context-parallel-size", layout.context_parallel_size, "N", "Ranks that share a sequence.")
      .at_least(1)
      .limited_to(1 << 20);
  flags.add("--pipeline-model-parallel-size", layout.pipeline_model_parallel_size, "N", "Pipeline stages.")
      .at_least(1)
      .limited_to(1 << 20);
  flags
      .add("--decoder-first-pipeline-num-layers", layout.decoder_first_pipeline_num_layers, "N",
           "Layers (items of the pattern) on the first stage.")
      .alias("--first-stage-layers")
      .at_least(1)
      .standard("even");
  flags
      .add("--decoder-last-pipeline-num-layers", layout.decoder_last_pipeline_num_layers, "N",
           "Layers (items of the pattern) on the last stage.")
      .alias("--last-stage-layers")
      .at_least(1)
      .standard("even");
  flags.add("--expert-model-parallel-size", layout.expert_model_parallel_size, "N", "Ranks that share the experts.")
      .at_least(1)
      .limited_to(1 << 20);

  add_logging_flags(flags, options.logging);
  add_checkpoint_flags(flags, options.checkpoint);
  flags.section("Execution");
  flags.add("--device", options.execution.device, "NAME", "Where to compute; `weft devices` lists what there is.")
      .standard("cuda where there is a GPU that can train the model, else cpu");
  flags.add("--threads", options.execution.threads, "N", "Threads of this process.").at_least(1).standard("one a core");
  flags.choice("--executor", options.execution.executor,
               {{"serial", ExecutorKind::serial}, {"parallel", ExecutorKind::parallel}},
               "parallel runs lanes as threads; serial runs one node after another and is the oracle.");
  flags.choice(
      "--cuda-graph", options.execution.cuda_graph, {{"none", GraphKind::none}, {"full", GraphKind::full}},
      "On a GPU: full records a whole step as one CUDA graph and replays it, where nothing waits on the host.");
  flags.choice("--attention-backward", options.execution.attention_backward,
               {{"deterministic", AttentionBackwardKind::deterministic}, {"fastest", AttentionBackwardKind::fastest}},
               "On a GPU: fastest lets cuDNN add gradients up in any order; then two runs differ in their last bits.");
  flags.add("--deterministic-mode", options.execution.deterministic_mode,
            "Refuses what would let two runs differ: --attention-backward fastest. Nothing else does.");
  flags.add("--overlap-moe-expert-parallel-comm", options.execution.overlap_moe_expert_parallel_comm,
            "Weave: hide the exchange of one micro-batch behind the computation of another.");
  flags.add("--delay-wgrad-compute", options.execution.delay_wgrad_compute,
            "Compute weight gradients after what other ranks wait for.");
  flags.add("--ep-overlap-early-attn-memory-release", options.execution.ep_overlap_early_attn_memory_release,
            "In the weave, run attention's backward before the other micro-batch's experts: less memory, less hidden.");
  flags.add("--overlap-optimizer", options.execution.overlap_optimizer,
            "Update the weights of a unit beside the next step's forward pass, before that comes to the unit; "
            "with --clip-grad 0 also beside this step's backward pass.");
  flags.choice("--distributed-backend", options.execution.distributed_backend,
               {{"auto", BackendKind::automatic},
                {"nccl", BackendKind::nccl},
                {"gloo", BackendKind::automatic},
                {"mpi", BackendKind::automatic}},
               "How ranks exchange what is on GPUs: auto copies between threads (--ranks) and uses NCCL between the "
               "processes of a launcher; nccl always uses it. What is in host memory goes the launcher's way.");
  flags
      .add("--distributed-timeout-minutes", options.execution.distributed_timeout_minutes, "X",
           "Longest wait for another rank.")
      .above(0);
  flags.add("--emulate-network", options.execution.emulate_network, "SPEC",
            "Between thread ranks: latency=100us,bandwidth=2GB/s.");
  flags.add("--inject-fault", options.execution.inject_fault, "KIND@NODE:RANK",
            "Break on purpose at a node of `weft plan` on a rank: error, stall, kill or counts.");
  flags.add("--trace", options.execution.trace, "FILE", "What the last step did and when, for Perfetto.");
  flags.add("--timeline", options.execution.timeline, "FILE", "The same as a page, plan beside actual.");
  flags.add("--digest", options.execution.digest,
            "Ends with a digest of all weights: the same in whatever order a layout runs; another layout rounds "
            "differently.");
  add_foreign_flags(flags);
}

std::string options_markdown() {
  TrainOptions options;
  FlagTable flags("weft train");
  add_train_flags(flags, options);
  return "# Options of `weft train`\n\n"
         "Made from the table of flags (`weft/train/options_table.cc`); do not edit. `weft plan`, `check` and `verify` "
         "take the same; of files and lines that only a run makes they note that none come.\n"
         "`--flag value` and `--flag=value` are the same; names are never abbreviated; a flag given twice with "
         "different values is an error; so is an empty value, which a script's unset variable leaves, and a flag "
         "that would do nothing in this model or run.\n"
         "`--config FILE.toml` takes the same names without dashes in front, `_` or `-` inside, in any tables: "
         "`hidden-size = 64`, `bf16 = true`, `data-path = [\"a\", \"b\"]`. A later file wins over an earlier one, the "
         "command line over all.\n" +
         flags.markdown();
}

}  // namespace weft
