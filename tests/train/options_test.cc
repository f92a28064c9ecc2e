#include "weft/train/options.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/train/parsed_options.h"

namespace weft {
namespace {

TEST(Options, DefaultsAreASmallModelOnStories) {
  const ParsedOptions run("");
  const TrainOptions& o = run.options;
  EXPECT_EQ(o.model.pattern, default_pattern);
  EXPECT_EQ(o.model.ffn_hidden_size, 4 * o.model.hidden_size);
  EXPECT_EQ(o.model.kv_channels * o.model.num_attention_heads, o.model.hidden_size);
  EXPECT_EQ(o.model.num_query_groups, o.model.num_attention_heads);
  EXPECT_EQ(o.model.num_experts, 8);
  EXPECT_EQ(o.batch.global_batch_size, o.batch.micro_batch_size);
  EXPECT_GT(o.data.stories, 0);
  EXPECT_EQ(o.data.tokenizer.type, "ByteTokenizer");
  EXPECT_EQ(o.layout.ranks, 1);
  EXPECT_EQ(o.dtype, DType::f32);
  EXPECT_EQ(o.optimizer.adam_beta2, 0.95);
  EXPECT_EQ(micro_batches(o), 1);
  EXPECT_TRUE(run.flags.notes().empty());

  const ModelConfig config = model_config(o);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_FALSE(config.attention.qkv_bias || config.attention.output_bias || config.mlp.bias);
  EXPECT_TRUE(config.attention.rope.enabled);
  EXPECT_EQ(config.mlp.activation.kind, ActivationKind::swiglu);
  EXPECT_EQ(config.vocabulary, 257);
  EXPECT_EQ(config.padded_vocabulary, 384);
}

TEST(Options, EveryModelFlagReachesTheModel) {
  const ParsedOptions run(
      "--hybrid-layer-pattern [*-][*E] --hidden-size 64 --ffn-hidden-size 96 --num-attention-heads 8 "
      "--num-query-groups 2 --kv-channels 16 --qk-layernorm --add-qkv-bias --rotary-base 500000 --rotary-percent 0.5 "
      "--use-rope-scaling --rope-scaling-factor 32 --rotary-interleaved --window-size 128 --norm-epsilon 1e-6 "
      "--apply-layernorm-1p --squared-relu --tie-embeddings --init-method-std 0.01 --max-position-embeddings 4096 "
      "--num-experts 16 --moe-ffn-hidden-size 48 --moe-router-topk 4 --moe-router-score-function sigmoid "
      "--moe-router-num-groups 4 --moe-router-group-topk 2 --moe-router-topk-scaling-factor 2.5 "
      "--moe-shared-expert-intermediate-size 80 --mock-data --vocab-size 1000 --make-vocab-size-divisible-by 64");
  const ModelConfig c = model_config(run.options);
  EXPECT_EQ(c.pattern, "[*-][*E]");
  EXPECT_EQ(c.hidden, 64);
  EXPECT_EQ(c.vocabulary, 1001);  // one id ends a document
  EXPECT_EQ(c.padded_vocabulary, 1024);
  EXPECT_EQ(c.norm_epsilon, 1e-6);
  EXPECT_TRUE(c.zero_centred_norms);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.init_std, 0.01);
  EXPECT_EQ(c.max_positions, 4096);
  EXPECT_EQ(c.attention.heads, 8);
  EXPECT_EQ(c.attention.kv_heads, 2);
  EXPECT_EQ(c.attention.head_dim, 16);
  EXPECT_TRUE(c.attention.qkv_bias);
  EXPECT_FALSE(c.attention.output_bias);
  EXPECT_TRUE(c.attention.qk_norm);
  EXPECT_EQ(c.attention.window, 128);
  EXPECT_EQ(c.attention.rope.base, 500000);
  EXPECT_EQ(c.attention.rope.fraction, 0.5);
  EXPECT_EQ(c.attention.rope.style, RotaryStyle::interleaved);
  EXPECT_EQ(c.attention.rope.scaling, RopeSpec::Scaling::llama3);
  EXPECT_EQ(c.attention.rope.factor, 32);
  EXPECT_EQ(c.attention.rope.original_positions, 8192);
  EXPECT_EQ(c.mlp.ffn, 96);
  EXPECT_EQ(c.mlp.activation.kind, ActivationKind::squared_relu);
  EXPECT_EQ(c.experts.experts, 16);
  EXPECT_EQ(c.experts.ffn, 48);
  EXPECT_EQ(c.experts.shared_ffn, 80);
  EXPECT_EQ(c.experts.activation.kind, ActivationKind::squared_relu);
  EXPECT_EQ(c.experts.router.score, RouterSpec::Score::sigmoid);
  EXPECT_EQ(c.experts.router.k, 4);
  EXPECT_EQ(c.experts.router.groups, 4);
  EXPECT_EQ(c.experts.router.keep_groups, 2);
  EXPECT_EQ(c.experts.router.group_best, 2);
  EXPECT_EQ(c.experts.router.scaling, 2.5);
  EXPECT_TRUE(c.experts.router.normalise);
}

TEST(Options, RecurrentFlagsReachTheModel) {
  const ParsedOptions run(
      "--pattern M[GE]* --hidden-size 64 --mamba-state-dim 32 --mamba-head-dim 16 --mamba-num-heads 6 "
      "--mamba-num-groups 3 --mamba-conv-kernel-dim 3 --mamba-chunk-size 48 --linear-num-value-heads 6 "
      "--linear-num-key-heads 3 --linear-value-head-dim 24 --linear-key-head-dim 40 --linear-conv-kernel-dim 2 "
      "--attention-output-gate --moe-shared-expert-intermediate-size 32 --moe-shared-expert-gate "
      "--moe-latent-size 24");
  const ModelConfig c = model_config(run.options);
  EXPECT_EQ(c.mamba.state, 32);
  EXPECT_EQ(c.mamba.head_dim, 16);
  EXPECT_EQ(c.mamba.heads, 6);
  EXPECT_EQ(c.mamba.groups, 3);
  EXPECT_EQ(c.mamba.taps, 3);
  EXPECT_EQ(c.mamba.chunk, 48);
  EXPECT_EQ(c.delta_net.heads, 6);
  EXPECT_EQ(c.delta_net.key_heads, 3);
  EXPECT_EQ(c.delta_net.head_dim, 24);
  EXPECT_EQ(c.delta_net.key_dim, 40);
  EXPECT_EQ(c.delta_net.taps, 2);
  EXPECT_TRUE(c.attention.output_gate);
  EXPECT_TRUE(c.experts.shared_gate);
  EXPECT_EQ(c.experts.latent, 24);
  const ModelConfig standard = model_config(ParsedOptions("--pattern MG").options);  // hidden 128
  EXPECT_EQ(standard.mamba.heads, 4);
  EXPECT_EQ(standard.mamba.groups, 4);
  EXPECT_EQ(standard.delta_net.heads, 2);
  EXPECT_EQ(standard.delta_net.key_heads, 1);
}

TEST(Options, Routers) {
  const auto router = [](const char* words) { return model_config(ParsedOptions(words).options).experts.router; };
  EXPECT_TRUE(router("").choose_first);
  EXPECT_FALSE(router("").normalise);
  EXPECT_FALSE(router("--moe-router-pre-softmax").choose_first);
  EXPECT_FALSE(router("--moe-router-pre-softmax").normalise);
  EXPECT_TRUE(router("--moe-router-pre-softmax --moe-router-norm-topk").normalise);
  EXPECT_TRUE(router("--moe-router-score-function sigmoid").normalise);
  EXPECT_FALSE(router("--moe-router-score-function sigmoid --moe-router-topk 1").normalise);
  EXPECT_FALSE(router("--moe-router-score-function sigmoid --no-moe-router-norm-topk").normalise);
}

TEST(Options, MegatronsSpellings) {
  const ParsedOptions run(
      "--hybrid-override-pattern *- --group-query-attention --disable-bias-linear --swiglu --bf16 "
      "--untie-embeddings-and-output-weights --normalization RMSNorm --position-embedding-type rope");
  EXPECT_EQ(run.options.model.pattern, "*-");
  EXPECT_EQ(run.options.model.num_query_groups, 1);
  EXPECT_EQ(precision_of(run.options).compute, DType::bf16);
  EXPECT_EQ(run.flags.notes(), (std::vector<std::string>{"--normalization RMSNorm: It is the only norm."}));
  EXPECT_EQ(ParsedOptions("--fp64").options.dtype, DType::f64);
  EXPECT_EQ(ParsedOptions("--no-rope").options.model.positions, PositionKind::none);
  EXPECT_EQ(model_config(ParsedOptions("--pattern *- --add-bias-linear").options).attention.output_bias, true);
  EXPECT_EQ(ParsedOptions("--window-size 127,0").options.model.window_size, 128);
  EXPECT_EQ(ParsedOptions("--window-size -1,0").options.model.window_size, 0);
}

TEST(Options, BalanceThatMakesNoSense) {
  const auto problem = [](const std::string& flags) { return problem_of("--pattern [*E] " + flags); };
  EXPECT_EQ(problem("--moe-aux-loss-coeff 0.1 0.2"),
            "--moe-aux-loss-coeff has 2 values and --moe-router-load-balancing-type 1; give one coefficient per loss");
  EXPECT_EQ(problem("--moe-aux-loss-coeff much"), "--moe-aux-loss-coeff: 'much' is not a number of at least 0");
  EXPECT_EQ(problem("--moe-aux-loss-coeff=-1"), "--moe-aux-loss-coeff: '-1' is not a number of at least 0");
  EXPECT_EQ(problem("--moe-router-load-balancing-type sinkhorn"),
            "--moe-router-load-balancing-type sinkhorn: Weft has no such router; use aux_loss, seq_aux_loss, "
            "global_aux_loss, or --moe-router-enable-expert-bias");
  EXPECT_EQ(problem("--moe-router-load-balancing-type even"),
            "--moe-router-load-balancing-type: 'even' is not one of aux_loss, seq_aux_loss, global_aux_loss, none");
  EXPECT_EQ(problem("--moe-router-load-balancing-type none --moe-aux-loss-coeff 0.1"),
            "--moe-aux-loss-coeff: has no effect with --moe-router-load-balancing-type none; drop one of the two");
  EXPECT_EQ(problem("--moe-router-load-balancing-type none aux_loss --moe-aux-loss-coeff 0 0.1"),
            "--moe-router-load-balancing-type none: cannot be combined with others");
  EXPECT_EQ(problem("--moe-router-load-balancing-type aux_loss aux_loss --moe-aux-loss-coeff 0.1 0.1"),
            "--moe-router-load-balancing-type: aux_loss is given twice; keep one");
  EXPECT_EQ(
      problem("--moe-router-enable-expert-bias"),
      "--moe-router-enable-expert-bias: the bias corrects sigmoid scores; add --moe-router-score-function sigmoid");
  EXPECT_EQ(problem("--moe-router-load-balancing-type aux_loss global_aux_loss --moe-aux-loss-coeff 0.1 0.2"),
            "no error");
}

TEST(Options, ContradictingSpellings) {
  EXPECT_EQ(error_of("--bf16 --fp64"),
            "--dtype is given twice with different values: bf16 (--bf16) and f64 (--fp64); keep one");
  EXPECT_EQ(error_of("--swiglu --gelu"),
            "--activation is given twice with different values: swiglu (--swiglu) and gelu (--gelu); keep one");
  EXPECT_EQ(error_of("--tie-embeddings --untie-embeddings-and-output-weights"),
            "--tie-embeddings is given twice with different values: true and false "
            "(--untie-embeddings-and-output-weights); keep one");
}

TEST(Options, WindowsThatCannotBe) {
  EXPECT_EQ(error_of("--window-size 128,5"),
            "--window-size 128,5: attention is causal, so a query sees no later keys; use BEFORE,0");
  EXPECT_EQ(error_of("--window-size 0"), "--window-size: 0 is out of range; it must be at least 1");
  EXPECT_EQ(error_of("--window-size a"), "--window-size: 'a' is neither N nor BEFORE,0");
  EXPECT_EQ(error_of("--window-size 1,2,3"), "--window-size: '1,2,3' is neither N nor BEFORE,0");
}

TEST(Options, AttentionThatDoesNotDivide) {
  EXPECT_EQ(problem_of("--hidden-size 64 --num-attention-heads 7"),
            "--num-attention-heads 7: must divide --hidden-size 64; use --hidden-size 63 or 70, or set --kv-channels");
  EXPECT_EQ(problem_of("--hidden-size 64 --num-attention-heads 7 --kv-channels 8"), "no error");
  EXPECT_EQ(problem_of("--num-attention-heads 4 --num-query-groups 3"),
            "--num-query-groups 3: must divide --num-attention-heads 4; use a divisor of it");
  EXPECT_EQ(problem_of("--kv-channels 10 --rotary-percent 0.5"),
            "--rotary-percent 0.5: 5 of the 10 elements of a head would rotate, which must be an even number");
  EXPECT_EQ(problem_of("--max-position-embeddings 16 --seq-length 32"),
            "--max-position-embeddings 16: is below --seq-length 32; raise it");
}

TEST(Options, ExpertsThatCannotBe) {
  EXPECT_EQ(problem_of("--num-experts 4 --moe-router-topk 5"),
            "--moe-router-topk 5: must not exceed --num-experts 4; lower it, or use more experts");
  EXPECT_EQ(problem_of("--moe-router-topk 1"),
            "--moe-router-topk 1: the softmax over one chosen expert is always 1, so the router would not learn; add "
            "--moe-router-pre-softmax");
  EXPECT_EQ(problem_of("--moe-router-topk 1 --moe-router-pre-softmax"), "no error");
  EXPECT_EQ(problem_of("--no-moe-router-norm-topk"),
            "--no-moe-router-norm-topk: the softmax over the chosen experts always sums to one; add "
            "--moe-router-pre-softmax, or drop the flag");
  EXPECT_EQ(problem_of("--moe-router-score-function sigmoid --moe-router-pre-softmax"),
            "--moe-router-pre-softmax: sigmoid scores have no softmax; drop one of the two");
  EXPECT_EQ(problem_of("--add-bias-linear --moe-shared-expert-intermediate-size 8"),
            "--add-bias-linear: a shared expert has no biases; use --add-qkv-bias, or drop the flag");
  EXPECT_EQ(problem_of("--position-embedding-type yarn --use-rope-scaling"),
            "--use-rope-scaling: YaRN already scales the positions; drop one of the two");
  EXPECT_EQ(problem_of("--moe-router-num-groups 3 --moe-router-group-topk 1"),
            "--moe-router-num-groups 3: must divide --num-experts 8");
  EXPECT_EQ(problem_of("--moe-router-num-groups 2"), "--moe-router-num-groups 2: also needs --moe-router-group-topk");
  EXPECT_EQ(problem_of("--moe-router-group-topk 2"), "--moe-router-group-topk 2: also needs --moe-router-num-groups");
  EXPECT_EQ(problem_of("--moe-router-topk 4 --moe-router-num-groups 8 --moe-router-group-topk 2"),
            "--moe-router-topk 4: the 2 kept groups hold only 2 experts; keep more groups");
  EXPECT_EQ(problem_of("--moe-router-topk 6 --moe-router-num-groups 2 --moe-router-group-topk 3"),
            "--moe-router-group-topk 3: must not exceed --moe-router-num-groups 2");
  EXPECT_EQ(problem_of("--moe-router-topk 3 --moe-router-num-groups 2 --moe-router-group-topk 2"),
            "--moe-router-group-topk 2: must divide --moe-router-topk 3");
}

TEST(Options, PatternMistakesKeepTheirCaretLine) {
  const std::string problem = problem_of("--pattern [*-][E*] --min-lr 1");
  EXPECT_NE(problem.find("the configuration has 2 problems:\n  - --pattern: "), std::string::npos) << problem;
  EXPECT_NE(problem.find("      [*-][E*]\n"), std::string::npos) << problem;
  EXPECT_NE(problem.find("\n  - --min-lr 1: is above --lr 0.001; lower it"), std::string::npos) << problem;
}

TEST(Options, BatchesThatDoNotDivide) {
  EXPECT_EQ(
      problem_of("--micro-batch-size 4 --global-batch-size 14"),
      "--global-batch-size 14: must be a multiple of --micro-batch-size x data-parallel ranks = 4 x 1 = 4; use 12 "
      "or 16");
  EXPECT_EQ(problem_of("--micro-batch-size 4 --global-batch-size 2"),
            "--global-batch-size 2: must be a multiple of --micro-batch-size x data-parallel ranks = 4 x 1 = 4; use 4");
  EXPECT_EQ(error_of("--seq-length 0"), "--seq-length: 0 is out of range; it must be at least 1");
  EXPECT_EQ(problem_of("--train-iters 7 --train-samples 32 --global-batch-size 16"),
            "--train-iters 7: contradicts --train-samples 32; drop one of the two");
  EXPECT_EQ(problem_of("--train-samples 3"), "--train-samples 3: is less than one step of --global-batch-size 4");
  const ParsedOptions run("--micro-batch-size 2 --global-batch-size 8 --train-samples 100");
  EXPECT_EQ(micro_batches(run.options), 4);
  EXPECT_EQ(run.options.batch.train_iters, 12);
}

TEST(Options, FilesForEachSplit) {
  EXPECT_EQ(problem_of("--train-data-path a --valid-data-path b --vocab-size 50"), "no error");
  EXPECT_EQ(problem_of("--train-data-path a --data-path b --vocab-size 50"),
            "--data-path, --train-data-path: more than one source of data; keep one");
  EXPECT_EQ(problem_of("--data-path a --valid-data-path b --vocab-size 50"),
            "--valid-data-path: needs --train-data-path; --data-path and --split take both from the same files");
}

TEST(Options, Layouts) {
  const ParsedOptions run("--ranks 2 --micro-batch-size 3");
  EXPECT_EQ(run.options.layout.data_parallel_size(), 2);
  EXPECT_EQ(run.options.batch.global_batch_size, 6);
  EXPECT_EQ(ParsedOptions("", 4).options.layout.ranks, 4);
  EXPECT_EQ(problem_of("--ranks 2", 4), "--ranks 2: the launcher started 4 processes; drop --ranks");
  EXPECT_EQ(problem_of("--ranks 2 --expert-model-parallel-size 4"),
            "--expert-model-parallel-size 4: must divide the 2 ranks");
  TrainOptions stages;
  stages.layout.pipeline_model_parallel_size = 2;
  stages.layout.decoder_first_pipeline_num_layers = 1;
  stages.layout.decoder_last_pipeline_num_layers = 3;
  EXPECT_EQ(split_options(stages, "*").pp, 2);
  EXPECT_EQ(split_options(stages, "*").first_stage_layers, 1);
  EXPECT_EQ(split_options(stages, "*").last_stage_layers, 3);
  EXPECT_FALSE(split_options(ParsedOptions("").options, "*").first_stage_layers.has_value());
}

TEST(Options, ContextRanksDivideSamples) {
  EXPECT_EQ(problem_of("--context-parallel-size 3 --ranks 4"),
            "--context-parallel-size 3: times --tensor-model-parallel-size 1 must divide the 4 ranks");
  EXPECT_EQ(problem_of("--context-parallel-size 4 --ranks 4 --seq-length 36"),
            "--seq-length 36: must be a multiple of 2 x --context-parallel-size 4 = 8, the parts of a sequence; use 32 "
            "or 40");
  EXPECT_EQ(
      problem_of("--context-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel --ranks 4 "
                 "--seq-length 12 --pattern *-"),
      "--seq-length 12: must be a multiple of 2 x --context-parallel-size 2 x --tensor-model-parallel-size 2 = 8, "
      "the parts of a sequence; use 8 or 16");
  const ParsedOptions run("--context-parallel-size 2 --ranks 8 --pattern *-* --cp-comm-type p2p a2a all_gather");
  EXPECT_EQ(run.options.layout.data_parallel_size(), 4);
  EXPECT_EQ(context_transfers(run.options),
            (std::vector{ContextTransfer::p2p, ContextTransfer::a2a, ContextTransfer::all_gather}));
  EXPECT_EQ(problem_of("--context-parallel-size 2 --ranks 2 --pattern *-* --cp-comm-type p2p a2a"),
            "--cp-comm-type p2p a2a: 2 values for 3 layers; give one, or one for each layer");
  EXPECT_EQ(problem_of("--context-parallel-size 2 --ranks 2 --cp-comm-type ring"),
            "--cp-comm-type ring: not one of p2p, all_gather, a2a, a2a+p2p");
  EXPECT_EQ(problem_of("--context-parallel-size 4 --ranks 4 --cp-comm-type a2a+p2p "
                       "--hierarchical-context-parallel-sizes 2 4"),
            "--hierarchical-context-parallel-sizes 2 4: with --cp-comm-type a2a+p2p, two numbers whose product is "
            "--context-parallel-size 4: ranks that exchange heads, and ranks that send each other keys");
}

TEST(Options, TensorRanksDivideAllRanks) {
  EXPECT_EQ(problem_of("--tensor-model-parallel-size 3 --ranks 4"),
            "--tensor-model-parallel-size 3: must divide the 4 ranks");
  const ParsedOptions run("--tensor-model-parallel-size 2 --ranks 6 --pattern *-");
  EXPECT_EQ(run.options.layout.data_parallel_size(), 3);
  EXPECT_EQ(run.options.layout.expert_tensor_parallel_size, 2);
  EXPECT_EQ(problem_of("--expert-tensor-parallel-size 2 --expert-model-parallel-size 4 --ranks 4 --num-experts 4"),
            "--expert-tensor-parallel-size 2: times --expert-model-parallel-size 4 must divide the 4 ranks");
}

TEST(Options, DataSources) {
  EXPECT_EQ(ParsedOptions("--stories").options.data.stories, 4000000);
  EXPECT_EQ(ParsedOptions("--stories 1000").options.data.stories, 1000);
  EXPECT_EQ(ParsedOptions("--mock-data").options.data.stories, 0);
  EXPECT_EQ(ParsedOptions("--data-path 0.3 a 0.7 b").options.data.data_path.size(), 4u);
  EXPECT_EQ(problem_of("--mock-data --text a.txt"), "--mock-data, --text: more than one source of data; keep one");
  EXPECT_EQ(problem_of("--mock-data --tokenizer-type NullTokenizer"),
            "--tokenizer-type NullTokenizer: needs --vocab-size N, the number of ids");
  EXPECT_EQ(problem_of("--mock-data --tokenizer-type ByteTokenizer --vocab-size 300"),
            "--vocab-size 300: ByteTokenizer has a vocabulary of its own; drop one of the two");
  EXPECT_EQ(problem_of("--vocab-size 300"),
            "--tokenizer-type NullTokenizer: stories are text; use ByteTokenizer, or drop --vocab-size");
  EXPECT_EQ(error_of("--tokenizer-type ByteTokeniser"),
            "--tokenizer-type: 'ByteTokeniser' is not one of ByteTokenizer, NullTokenizer, HuggingFaceTokenizer, "
            "SentencePieceTokenizer, GPTSentencePieceTokenizer, Llama2Tokenizer, TikTokenizer, GPT2BPETokenizer; did "
            "you mean "
            "ByteTokenizer?");
  EXPECT_EQ(problem_of("--mock-data --split 1,x"),
            "--split 1,x: \"x\" is not a share; give three numbers, like 969,30,1");
}

TEST(Options, ScheduleInSamples) {
  const ParsedOptions run(
      "--global-batch-size 8 --train-iters 100 --lr-warmup-iters 10 --lr 2 --min-lr 1 --lr-warmup-init 0.5");
  const LearningRateSpec spec = learning_rate_spec(run.options);
  EXPECT_EQ(spec.warmup, 80);
  EXPECT_EQ(spec.decay, 800);
  EXPECT_EQ(learning_rate(spec, 0), 0.5);
  EXPECT_EQ(learning_rate(spec, 80), 2);
  EXPECT_EQ(learning_rate(spec, 440), 1.5);  // half-way through the decay
  EXPECT_EQ(learning_rate(spec, 800), 1);

  const LearningRateSpec fraction =
      learning_rate_spec(ParsedOptions("--train-iters 50 --lr-decay-iters 40 --lr-warmup-fraction 0.25").options);
  EXPECT_EQ(fraction.decay, 160);
  EXPECT_EQ(fraction.warmup, 40);

  const LearningRateSpec samples = learning_rate_spec(
      ParsedOptions("--train-samples 1002 --lr-warmup-samples 10 --lr-decay-style WSD --lr-wsd-decay-samples 50 "
                    "--lr-wsd-decay-style minus_sqrt")
          .options);
  EXPECT_EQ(samples.decay, 1002);
  EXPECT_EQ(samples.warmup, 10);
  EXPECT_EQ(samples.wsd, 50);
  EXPECT_EQ(samples.style, DecayStyle::wsd);
  EXPECT_EQ(samples.wsd_style, WsdStyle::minus_sqrt);

  const WeightDecaySpec decay = weight_decay_spec(
      ParsedOptions("--train-iters 10 --start-weight-decay 0.1 --end-weight-decay 0.3 --weight-decay-incr-style cosine")
          .options);
  EXPECT_EQ(decay.start, 0.1);
  EXPECT_EQ(decay.end, 0.3);
  EXPECT_EQ(decay.length, 40);
  EXPECT_EQ(weight_decay(weight_decay_spec(ParsedOptions("--weight-decay 0.2").options), 17), 0.2);
}

TEST(Options, GradientsInBf16NeedAModelInBf16) {
  for (const char* model : {"", "--fp64 "})
    EXPECT_EQ(problem_of(std::string(model) + "--grad-reduce-in-bf16"),
              "--grad-reduce-in-bf16: works only with a bf16 model; add --bf16");
  EXPECT_EQ(error_of("--bf16 --grad-reduce-in-bf16"), "no error");
}

TEST(Options, TheFastestAttentionIsNotDeterministic) {
  EXPECT_EQ(problem_of("--deterministic-mode --attention-backward fastest"),
            "--attention-backward fastest: two runs of it differ; drop it or --deterministic-mode");
  for (const char* flags : {"--deterministic-mode", "--deterministic-mode --attention-backward deterministic"})
    EXPECT_EQ(error_of(flags), "no error");
}

TEST(Options, SchedulesThatCannotBe) {
  EXPECT_EQ(problem_of("--lr 1e-4 --min-lr 1e-3"), "--min-lr 0.001: is above --lr 0.0001; lower it");
  EXPECT_EQ(problem_of("--lr-warmup-iters 2 --lr-warmup-init 1"), "--lr-warmup-init 1: is above --lr 0.001; lower it");
  EXPECT_EQ(problem_of("--train-iters 10 --lr-warmup-iters 10"),
            "--lr-warmup-iters 10: the warm-up of 40 samples must end before the decay of 40 samples; shorten it, or "
            "set --lr-decay-iters");
  EXPECT_EQ(problem_of("--lr-warmup-fraction 0.1 --lr-warmup-iters 10"),
            "--lr-warmup-fraction 0.1: the length of the warm-up is also set by --lr-warmup-iters or "
            "--lr-warmup-samples; keep one");
  EXPECT_EQ(problem_of("--lr-decay-iters 10 --lr-decay-samples 40"),
            "--lr-decay-iters 10: --lr-decay-samples 40 sets the same in samples; drop one of the two");
  EXPECT_EQ(problem_of("--lr-decay-style WSD"), "--lr-decay-style WSD: needs --lr-wsd-decay-iters");
  EXPECT_EQ(problem_of("--train-iters 10 --lr-decay-style WSD --lr-warmup-iters 6 --lr-wsd-decay-iters 5"),
            "--lr-wsd-decay-iters 5: warm-up and last part, 24 + 20 samples, must fit into the decay of 40; shorten "
            "one of them");
  EXPECT_EQ(problem_of("--weight-decay-incr-style linear"),
            "--weight-decay-incr-style linear: needs --start-weight-decay and --end-weight-decay");
  EXPECT_EQ(problem_of("--start-weight-decay 0.1"),
            "--weight-decay-incr-style constant: --start-weight-decay 0.1 and --end-weight-decay 0.01 differ from "
            "--weight-decay 0.01; drop them, or use linear or cosine");
  EXPECT_EQ(problem_of("--start-weight-decay 0.2 --end-weight-decay 0.1 --weight-decay-incr-style linear"),
            "--end-weight-decay 0.1: is below --start-weight-decay 0.2; raise it");
  EXPECT_EQ(error_of("--sgd-momentum 1"), "--sgd-momentum: 1 is out of range; it must be at least 0 and below 1");
  EXPECT_EQ(error_of("--optimizer muon"),
            "--optimizer muon: Weft has no such optimizer; choose one of adam, adamw, sgd");
  EXPECT_EQ(error_of("--adam-beta2 1"), "--adam-beta2: 1 is out of range; it must be at least 0 and below 1");
}

TEST(Options, AllProblemsAreReportedAtOnce) {
  EXPECT_EQ(error_of("--hidden-size 30 --num-experts 1 --global-batch-size 5 --min-lr 1 --mock-data --text a"),
            "the configuration has 5 problems:\n"
            "  - --num-attention-heads 4: must divide --hidden-size 30; use --hidden-size 28 or 32, or set "
            "--kv-channels\n"
            "  - --moe-router-topk 2: must not exceed --num-experts 1; lower it, or use more experts\n"
            "  - --global-batch-size 5: must be a multiple of --micro-batch-size x data-parallel ranks = 4 x 1 = 4; "
            "use 4 or 8\n"
            "  - --mock-data, --text: more than one source of data; keep one\n"
            "  - --min-lr 1: is above --lr 0.001; lower it");
}

TEST(Options, SizesSetInCodeAreCheckedToo) {
  TrainOptions options;
  options.model.hidden_size = 0;
  options.batch.micro_batch_size = 0;
  resolve(options);
  const std::vector<std::string> problems = find_problems(options);
  EXPECT_NE(std::find(problems.begin(), problems.end(), "--hidden-size 0: must be at least 1"), problems.end());
  EXPECT_NE(std::find(problems.begin(), problems.end(), "--micro-batch-size 0: must be at least 1"), problems.end());
  TrainOptions layout;
  layout.layout.pipeline_model_parallel_size = 0;
  resolve(layout);
  EXPECT_EQ(find_problems(layout), (std::vector<std::string>{"--pipeline-model-parallel-size 0: must be at least 1"}));
}

TEST(Options, AHuggingFaceDirectorySaysTheModel) {
  const ParsedOptions run("--hf some/dir --lr 1e-4");
  EXPECT_TRUE(run.options.model.pattern.empty());
  EXPECT_EQ(problem_of("--hf some/dir --hidden-size 64"),
            "--hidden-size 64: --hf some/dir already decides the model; drop the flag");
  EXPECT_THROW(model_config(run.options), BugError);
}

}  // namespace
}  // namespace weft
