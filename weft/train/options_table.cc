// The flags of `weft train`. Where Megatron has a flag, its name is Megatron's.
#include "weft/train/options.h"
#include "weft/train/tokenizer_flags.h"

namespace weft {
namespace {

void add_batch_flags(FlagTable& flags, BatchOptions& batch) {
  flags.section("Batch and length");
  flags.add("--seq-length", batch.seq_length, "N", "Tokens per sequence.").at_least(1);
  flags.add("--micro-batch-size", batch.micro_batch_size, "N", "Sequences that a rank computes at once.").at_least(1);
  flags.add("--global-batch-size", batch.global_batch_size, "N", "Sequences per step, over all ranks.")
      .at_least(1)
      .standard("micro-batch-size x data-parallel ranks");
  flags.add("--train-iters", batch.train_iters, "N", "Number of steps to train.")
      .at_least(1)
      .standard("train-samples / global-batch-size, or 200");
  flags.add("--train-samples", batch.train_samples, "N", "Number of sequences to train on, instead of --train-iters.")
      .at_least(1)
      .limited_to(1e15)
      .standard("none");
  flags.add("--calculate-per-token-loss", batch.calculate_per_token_loss,
            "Every token of a step that counts in the loss weighs the same. Otherwise every micro-batch of every rank "
            "does, however many of its tokens count.");
}

void add_data_flags(FlagTable& flags, DataOptions& data) {
  flags.section("Data");
  flags.add("--data-path", data.data_path, "PREFIX",
            "Megatron token files (.bin and .idx): one prefix, or pairs of WEIGHT PREFIX.");
  flags.add("--train-data-path", data.train_data_path, "PREFIX",
            "Token files for training only, instead of --data-path and --split.");
  flags.add("--valid-data-path", data.valid_data_path, "PREFIX",
            "Token files for validation, together with --train-data-path.");
  flags.add("--split", data.split, "A,B,C", "Shares of the documents for training, validation and test.");
  flags.add("--mock-data", data.mock_data, "Train on synthetic documents that count upwards.");
  flags.add("--stories", data.stories, "BYTES", "Train on BYTES of text from the built-in story generator.")
      .at_least(1)
      .or_alone("4000000")
      .standard("4000000 if no other data is given");
  flags.add("--text", data.text, "FILE", "Train on a plain text file.");
  add_tokenizer_flags(flags, data.tokenizer)
      .standard(
          "what --tokenizer-model is; NullTokenizer if --vocab-size is given, else ByteTokenizer; with --hf what its "
          "folder holds");
  flags
      .add("--make-vocab-size-divisible-by", data.make_vocab_size_divisible_by, "N",
           "Pad the rows of embedding and head to a multiple of N, the same in every layout.")
      .at_least(1);
  flags.add("--reset-attention-mask", data.reset_attention_mask,
            "The documents of a sample do not see each other: attention, states, convolutions and the shift of MTP end "
            "with a document. A document ends with the tokenizer's end-of-document token.");
  flags.add("--reset-position-ids", data.reset_position_ids,
            "Count positions from the beginning of a document, not of the sample.");
  flags.add("--eod-mask-loss", data.eod_mask_loss,
            "What follows the end of a document is not predicted: it does not count in the loss.");
  flags.add("--seed", data.seed, "N", "Seed of the initial weights and the order of samples.")
      .at_least(0)
      .at_most(4294967295.0)
      .limited_to(4294967295.0);
  flags
      .add("--eval-interval", data.eval_interval, "N",
           "Steps between validations; there is also one at the end. 0: never validate.")
      .at_least(0);
  flags.add("--eval-iters", data.eval_iters, "N", "Global batches per validation.").at_least(0);
}

void add_logging_flags(FlagTable& flags, LoggingOptions& logging) {
  flags.section("Logging");
  flags.add("--log-interval", logging.log_interval, "N", "Steps between log lines.").at_least(1);
  flags.add("--metrics", logging.metrics, "FILE", "Write one JSON line per step.");
  flags.add(
      "--moe-per-layer-logging", logging.moe_per_layer,
      "Log the losses that balance experts for each layer, too: by its place among the symbols of the pattern, and "
      "apart for each depth of multi-token prediction.");
  flags.add("--tensorboard-dir", logging.tensorboard_dir, "DIR", "Write TensorBoard event files.");
  flags
      .add("--sample", logging.sample, "PROMPT",
           "Print a continuation of this prompt at each validation and at the end. Repeatable.")
      .each()
      .may_be_empty();
  flags.add("--sample-length", logging.sample_length, "N", "Tokens per continuation.").at_least(1);
  flags
      .add("--sample-temperature", logging.sample_temperature, "X",
           "Sampling temperature; 0 always takes the likeliest token.")
      .at_least(0);
}

void add_checkpoint_flags(FlagTable& flags, CheckpointOptions& checkpoint) {
  flags.section("Checkpoints");
  flags.add("--save", checkpoint.save, "DIR",
            "Save checkpoints here, at the end and every --save-interval iterations. DIR/iter_NNNNNNN holds one.");
  flags.add("--save-interval", checkpoint.save_interval, "N", "Iterations between checkpoints; 0: one at the end.")
      .at_least(0);
  flags.add("--async-save", checkpoint.async_save,
            "Copy the state to the host between steps, and write checkpoints beside the steps that follow.");
  flags.add("--keep-last", checkpoint.keep_last, "N", "Remove all checkpoints but the last N; 0: keep all.")
      .at_least(0);
  flags
      .add("--save-retain-interval", checkpoint.save_retain_interval, "N",
           "With --keep-last: checkpoints of iterations that are multiples of N stay.")
      .at_least(0);
  flags.add("--no-save-optim", checkpoint.no_save_optim, "Save weights without the optimizer's state.");
  flags.add("--load", checkpoint.load, "DIR",
            "Go on from the last checkpoint in DIR, in any layout; start from scratch if there is none.");
  flags
      .add("--ckpt-step", checkpoint.ckpt_step, "N",
           "Load the checkpoint of iteration N; 0: the one that latest_checkpointed_iteration.txt names.")
      .at_least(0);
  flags.add("--load-last-complete", checkpoint.load_last_complete,
            "Load the newest checkpoint that is complete and undamaged, whatever the last one is.");
  flags.add("--finetune", checkpoint.finetune,
            "Load weights only; iterations, samples, schedule and optimizer begin anew.");
  flags.add("--no-load-optim", checkpoint.no_load_optim, "Load weights and position without the optimizer's state.");
  flags.add("--use-checkpoint-args", checkpoint.use_checkpoint_args,
            "Take the model's flags from the checkpoint of --load, Megatron's or Weft's. Flags only add to it.");
  flags.add(
      "--load-main-params-from-ckpt", checkpoint.load_main_params_from_ckpt,
      "Of a Megatron checkpoint: take weights from the model's tensors even where masters with more bits are kept.");
  flags.choice(
      "--dist-ckpt-strictness", checkpoint.dist_ckpt_strictness,
      {{"assume_ok_unexpected", Strictness::assume_ok_unexpected},
       {"log_unexpected", Strictness::log_unexpected},
       {"log_all", Strictness::log_all},
       {"raise_unexpected", Strictness::raise_unexpected},
       {"raise_all", Strictness::raise_all},
       {"return_unexpected", Strictness::return_unexpected},
       {"return_all", Strictness::return_all},
       {"ignore_all", Strictness::ignore_all}},
      "What happens to parameters that the checkpoint lacks (unexpected): an error; or they keep their initial "
      "values, with log_unexpected and log_all after a warning, with return_unexpected and return_all after a "
      "list of all in the log and in --metrics, with ignore_all without a word. And to tensors that the model "
      "does not have (missing): nothing, with log_all a warning, with return_all a list, with raise_all an error.");
  flags
      .add("--exit-interval", checkpoint.exit_interval, "N",
           "End, and save if --save is given, after the next iteration that is a multiple of N; 0: never.")
      .at_least(0);
  flags
      .add("--exit-duration-in-mins", checkpoint.exit_duration_in_mins, "X",
           "End, and save if --save is given, after this many minutes; 0: never.")
      .at_least(0);
  flags.add("--exit-signal-handler", checkpoint.exit_signal_handler,
            "On SIGTERM or SIGINT end after the present iteration, save if --save is given, and exit with 0.");
  flags.add("--save-fallback", checkpoint.save_fallback, "DIR",
            "Where --save-hf goes if it cannot be written: a folder on another disk.");
  flags.add(
      "--save-hf", checkpoint.save_hf, "DIR",
      "Write a Hugging Face folder with the trained weights at the end: with --hf a copy of that folder, or else one "
      "of the family that has such models.");
  flags
      .add("--hf-family", checkpoint.hf_family, "NAME",
           "The family of the folder that --save-hf writes, for a model that does not come from one.")
      .standard("the only one that has such models");
  flags.choice(
      "--hf-dtype", checkpoint.hf_dtype,
      {{"as-is", std::nullopt},
       {"f32", StoredType::f32},
       {"bf16", StoredType::bf16},
       {"f16", StoredType::f16},
       {"f64", StoredType::f64}},
      "Of the tensors that --save-hf writes. as-is: as they were read, or of a model made of flags what the run "
      "computes in.");
}

}  // namespace

void add_train_flags(FlagTable& flags, TrainOptions& options) {
  flags.section("General");
  flags
      .add("--config", options.config, "FILE",
           "Read flags from a TOML file. Repeatable: later files override earlier ones, and the command line overrides "
           "all.")
      .each()
      .only_on_command_line();
  flags.add("--explain", options.explain, "NAME", "Print a flag's value, its origin and its meaning. Repeatable.")
      .each()
      .only_on_command_line();
  add_model_flags(flags, options.model);
  add_batch_flags(flags, options.batch);
  add_data_flags(flags, options.data);
  add_optimizer_flags(flags, options.optimizer);

  flags.section("Precision");
  flags
      .choice("--dtype", options.dtype, {{"f32", DType::f32}, {"bf16", DType::bf16}, {"f64", DType::f64}},
              "Type of weights and activations. With bf16, sums, gradients and optimizer state stay in float.")
      .means("--fp32", "f32")
      .means("--bf16", "bf16")
      .means("--fp64", "f64");
  flags.add("--grad-reduce-in-bf16", options.grad_reduce_in_bf16,
            "With bf16: keep and exchange the gradients of matrices in bf16.");

  LayoutOptions& layout = options.layout;
  flags.section("Layout");
  flags.add("--ranks", layout.ranks, "N", "Number of ranks, run as threads of this process.")
      .at_least(1)
      .limited_to(1 << 20)
      .standard("the launcher's, or 1");
  flags
      .add("--rank", layout.rank, "R",
           "Rank of this process when started without a launcher. Needs --world-size, MASTER_ADDR and MASTER_PORT.")
      .at_least(0)
      .standard("the launcher's");
  flags.add("--world-size", layout.world_size, "N", "Number of processes when they are started without a launcher.")
      .at_least(1)
      .standard("the launcher's");
  flags
      .add("--tensor-model-parallel-size", layout.tensor_model_parallel_size, "N",
           "Ranks that divide each layer: heads, the columns of MLPs, the vocabulary. They read the same samples.")
      .at_least(1)
      .limited_to(1 << 20);
  flags.add("--sequence-parallel", layout.sequence_parallel,
            "Tensor-parallel ranks also divide the tokens between the layers' products, which takes less memory.");
  flags
      .add("--context-parallel-size", layout.context_parallel_size, "N",
           "Ranks that divide the tokens of every sample, in two strips each, one from each end.")
      .at_least(1)
      .limited_to(1 << 20);
  flags.add(
      "--cp-comm-type", layout.cp_comm_type, "NAME",
      "What context-parallel ranks send each other for attention: p2p (keys and values, from rank to rank), "
      "all_gather (all keys and values), a2a (all tokens of some heads) or a2a+p2p; one for all layers, or one for "
      "each.");
  flags.add("--hierarchical-context-parallel-sizes", layout.hierarchical_context_parallel_sizes, "N",
            "Of a2a+p2p: how many neighbours exchange heads, and how many send each other keys.");
  flags
      .add("--pipeline-model-parallel-size", layout.pipeline_model_parallel_size, "N",
           "Pipeline stages that the layers are divided over.")
      .at_least(1)
      .limited_to(1 << 20);
  flags
      .add("--decoder-first-pipeline-num-layers", layout.decoder_first_pipeline_num_layers, "N",
           "Layers on the first pipeline stage: symbols of --pattern, or layers of --num-layers.")
      .alias("--first-stage-layers")
      .at_least(1)
      .standard("even");
  flags
      .add("--decoder-last-pipeline-num-layers", layout.decoder_last_pipeline_num_layers, "N",
           "Layers on the last pipeline stage: symbols of --pattern, or layers of --num-layers.")
      .alias("--last-stage-layers")
      .at_least(1)
      .standard("even");
  flags
      .add("--num-virtual-stages-per-pipeline-rank", layout.num_virtual_stages_per_pipeline_rank, "N",
           "Virtual stages of each pipeline stage. A pattern with pipes decides it itself.")
      .at_least(1)
      .limited_to(1 << 20)
      .standard("1, or as the pattern's pipes say");
  flags
      .add("--num-layers-per-virtual-pipeline-stage", layout.num_layers_per_virtual_pipeline_stage, "N",
           "The same by the layers of a virtual stage: symbols of --pattern, or layers of --num-layers.")
      .at_least(1)
      .limited_to(1 << 20)
      .standard("not used");
  flags
      .add("--pipeline-model-parallel-layout", layout.pipeline_model_parallel_layout, "TEXT",
           "What every stage holds, for models of --num-layers: E embedding, t layer, m MTP, L loss, | next stage, *N "
           "repeats: \"Et*3|(tt|)*6mL\".")
      .standard("even");
  flags
      .add("--microbatch-group-size-per-virtual-pipeline-stage",
           layout.microbatch_group_size_per_virtual_pipeline_stage, "N",
           "Micro-batches that pass one virtual stage before any passes the next.")
      .at_least(1)
      .limited_to(1 << 20)
      .standard("the number of stages");
  flags.add("--use-tp-pp-dp-mapping", layout.use_tp_pp_dp_mapping,
            "Neighbouring ranks are stages of one pipeline, not copies of one stage.");
  flags
      .add("--expert-model-parallel-size", layout.expert_model_parallel_size, "N",
           "Ranks that the experts of a layer are spread over.")
      .at_least(1)
      .limited_to(1 << 20);
  flags.add("--expert-tensor-parallel-size", layout.expert_tensor_parallel_size, "N", "Ranks that divide each expert.")
      .at_least(1)
      .limited_to(1 << 20)
      .standard("tensor-model-parallel-size");

  add_sharding_flags(flags, options.sharding);
  add_recompute_flags(flags, options.recompute);
  add_logging_flags(flags, options.logging);
  add_checkpoint_flags(flags, options.checkpoint);
  flags.section("Execution");
  flags.add("--device", options.execution.device, "NAME", "Device to compute on; `weft devices` lists them.")
      .standard("cuda if there is a GPU that can train the model, else cpu");
  flags.add("--threads", options.execution.threads, "N", "Compute threads of this process.")
      .at_least(1)
      .standard("one per core");
  flags.choice(
      "--pipeline-order", options.execution.pipeline_order,
      {{"automatic", OrderKind::automatic},
       {"1f1b", OrderKind::one_f_one_b},
       {"interleaved", OrderKind::interleaved},
       {"zero-bubble", OrderKind::zero_bubble}},
      "Order of micro-batches on pipeline stages: automatic is interleaved where a stage has several segments, "
      "else 1f1b; zero-bubble fills waiting times with weight gradients.");
  flags.choice("--executor", options.execution.executor,
               {{"serial", ExecutorKind::serial}, {"parallel", ExecutorKind::parallel}},
               "parallel runs each lane on a thread of its own; serial runs one node after another, as the reference.");
  flags.choice(
      "--cuda-graph", options.execution.cuda_graph, {{"none", GraphKind::none}, {"full", GraphKind::full}},
      "On a GPU: full records a whole step as one CUDA graph and replays it, if nothing in it waits for the host.");
  flags.choice("--attention-backward", options.execution.attention_backward,
               {{"deterministic", AttentionBackwardKind::deterministic}, {"fastest", AttentionBackwardKind::fastest}},
               "On a GPU: fastest lets cuDNN sum gradients in any order, so that two runs differ in the last bits.");
  flags.add("--deterministic-mode", options.execution.deterministic_mode,
            "Refuse --attention-backward fastest, the only option that lets two runs differ.");
  flags.add("--overlap-moe-expert-parallel-comm", options.execution.overlap_moe_expert_parallel_comm,
            "Weave pairs of micro-batches: exchange the tokens of one while the other computes.");
  flags.add("--delay-wgrad-compute", options.execution.delay_wgrad_compute,
            "Delay weight gradients until what other ranks wait for is computed.");
  flags.add("--overlap-dispatch-backward-with-experts-wgrad",
            options.execution.overlap_dispatch_backward_with_experts_wgrad,
            "Without --overlap-moe-expert-parallel-comm: order the backward pass so that the experts' weight gradients "
            "hide the dispatch of tokens, and the shared expert hides the combine.");
  flags.add(
      "--ep-overlap-early-attn-memory-release", options.execution.ep_overlap_early_attn_memory_release,
      "When weaving, run the backward pass of attention before the other micro-batch's experts. It takes less memory "
      "and hides less of the exchange.");
  flags.add("--overlap-optimizer", options.execution.overlap_optimizer,
            "Update the weights of each unit during the next step's forward pass, just before they are needed; with "
            "--clip-grad 0, also during this step's backward pass.");
  flags.choice("--distributed-backend", options.execution.distributed_backend,
               {{"auto", BackendKind::automatic},
                {"nccl", BackendKind::nccl},
                {"gloo", BackendKind::automatic},
                {"mpi", BackendKind::automatic}},
               "How ranks exchange GPU memory. auto copies between threads (--ranks) and uses NCCL between processes; "
               "nccl always uses NCCL. Host memory always goes through MPI, TCP or threads, as launched.");
  flags
      .add("--distributed-timeout-minutes", options.execution.distributed_timeout_minutes, "X",
           "How long to wait for another rank before giving up.")
      .above(0);
  flags.add("--emulate-network", options.execution.emulate_network, "SPEC",
            "Slow down the exchange between ranks that are threads, as in latency=100us,bandwidth=2GB/s.");
  flags.add(
      "--inject-fault", options.execution.inject_fault, "KIND@NODE:RANK[:STEP]",
      "Break the run deliberately at a node of `weft plan` on a rank, in its first step or that one. KIND is error, "
      "stall, kill or counts.");
  flags.add("--trace", options.execution.trace, "FILE", "Write a trace of the last step for Perfetto.");
  flags.add("--timeline", options.execution.timeline, "FILE",
            "Write an HTML page that compares the last step with its plan.");
  flags.add("--digest", options.execution.digest,
            "Print a digest of all weights at the end. It does not depend on the order in which a layout runs; another "
            "layout rounds differently.");
  add_foreign_flags(flags);
}

std::string options_markdown() {
  TrainOptions options;
  FlagTable flags("weft train");
  add_train_flags(flags, options);
  return "# Options of `weft train`\n\n"
         "Generated from the table of flags (`weft/train/options_table.cc`); do not edit. `weft plan`, `check` and "
         "`verify` take the same flags; they print a note for files and log lines that only a training run writes.\n"
         "\n"
         "`--flag value` and `--flag=value` mean the same. Names are never abbreviated. It is an error to give a flag "
         "twice with different values, to give an empty value (as an unset variable of a script does), or to set a "
         "flag "
         "that has no effect in this model or run.\n"
         "\n"
         "`--config FILE.toml` takes the same names without the leading dashes, with `_` or `-`, in any table: "
         "`hidden-size = 64`, `bf16 = true`, `data-path = [\"a\", \"b\"]`. Later files override earlier ones, and the "
         "command line overrides all.\n" +
         flags.markdown();
}

}  // namespace weft
