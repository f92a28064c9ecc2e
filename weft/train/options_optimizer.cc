// Optimizer and schedule: their flags, and their meaning in samples.
#include "weft/train/options.h"

namespace weft {
namespace {

double run_samples(const BatchOptions& batch) {
  return static_cast<double>(batch.train_samples > 0 ? batch.train_samples
                                                     : batch.train_iters * batch.global_batch_size);
}

}  // namespace

void add_optimizer_flags(FlagTable& flags, OptimizerOptions& optimizer) {
  flags.section("Optimizer");
  flags
      .choice("--optimizer", optimizer.optimizer,
              {{"adam", OptimizerKind::adam}, {"adamw", OptimizerKind::adam}, {"sgd", OptimizerKind::sgd}},
              "How gradients change weights. adam, or adamw: AdamW. sgd: gradient descent with momentum.")
      .lacks("muon", "Weft has no such optimizer")
      .lacks("dist_muon", "Weft has no such optimizer")
      .lacks("lion", "Weft has no such optimizer")
      .lacks("soap", "Weft has no such optimizer");
  flags.add("--lr", optimizer.lr, "X", "Peak learning rate.").at_least(0);
  flags.add("--min-lr", optimizer.min_lr, "X", "Learning rate at the end of the decay.").at_least(0);
  flags.choice("--lr-decay-style", optimizer.lr_decay_style,
               {{"constant", DecayStyle::constant},
                {"linear", DecayStyle::linear},
                {"cosine", DecayStyle::cosine},
                {"inverse-square-root", DecayStyle::inverse_square_root},
                {"WSD", DecayStyle::wsd}},
               "How the learning rate falls after the warm-up.");
  flags
      .add("--lr-decay-iters", optimizer.lr_decay_iters, "N",
           "Steps until the learning rate reaches --min-lr, including the warm-up.")
      .at_least(1)
      .standard("the whole run");
  flags.add("--lr-decay-samples", optimizer.lr_decay_samples, "N", "--lr-decay-iters in samples.")
      .at_least(1)
      .limited_to(1e15)
      .standard("none");
  flags.choice("--lr-wsd-decay-style", optimizer.lr_wsd_decay_style,
               {{"exponential", WsdStyle::exponential},
                {"linear", WsdStyle::linear},
                {"cosine", WsdStyle::cosine},
                {"minus_sqrt", WsdStyle::minus_sqrt}},
               "How the learning rate falls in the last part of WSD.");
  flags.add("--lr-wsd-decay-iters", optimizer.lr_wsd_decay_iters, "N", "Length of the last part of WSD, in steps.")
      .at_least(1)
      .standard("none");
  flags
      .add("--lr-wsd-decay-samples", optimizer.lr_wsd_decay_samples, "N", "Length of the last part of WSD, in samples.")
      .at_least(1)
      .limited_to(1e15)
      .standard("none");
  flags
      .add("--lr-warmup-iters", optimizer.lr_warmup_iters, "N",
           "Length of the linear warm-up, in steps. As in Megatron, the first step runs at exactly --lr-warmup-init.")
      .at_least(0);
  flags.add("--lr-warmup-samples", optimizer.lr_warmup_samples, "N", "Length of the warm-up, in samples.")
      .at_least(0)
      .limited_to(1e15);
  flags
      .add("--lr-warmup-fraction", optimizer.lr_warmup_fraction, "X", "Length of the warm-up, as a share of the decay.")
      .at_least(0)
      .below(1)
      .standard("none");
  flags.add("--lr-warmup-init", optimizer.lr_warmup_init, "X", "Learning rate at the start of the warm-up.")
      .at_least(0);
  flags
      .add("--weight-decay", optimizer.weight_decay, "X",
           "Weight decay: decoupled with adam, part of the gradient with sgd.")
      .at_least(0);
  flags.add("--start-weight-decay", optimizer.start_weight_decay, "X", "Weight decay at the start of the run.")
      .at_least(0)
      .standard("weight-decay");
  flags.add("--end-weight-decay", optimizer.end_weight_decay, "X", "Weight decay at the end of the run.")
      .at_least(0)
      .standard("weight-decay");
  flags.choice("--weight-decay-incr-style", optimizer.weight_decay_incr_style,
               {{"constant", WeightDecayStyle::constant},
                {"linear", WeightDecayStyle::linear},
                {"cosine", WeightDecayStyle::cosine}},
               "How weight decay changes from --start-weight-decay to --end-weight-decay.");
  flags.add("--decay-all", optimizer.decay_all, "Also decay biases and norm weights.");
  flags.add("--adam-beta1", optimizer.adam_beta1, "X", "Decay rate of the first moment.").at_least(0).below(1);
  flags.add("--adam-beta2", optimizer.adam_beta2, "X", "Decay rate of the second moment. Megatron's default is 0.999.")
      .at_least(0)
      .below(1);
  flags.add("--adam-eps", optimizer.adam_eps, "X", "Epsilon that is added to the square root of the second moment.")
      .above(0);
  flags
      .add("--sgd-momentum", optimizer.sgd_momentum, "X",
           "Share of the last step's change that sgd repeats. 0: none, and no state is kept.")
      .at_least(0)
      .below(1);
  flags
      .add("--clip-grad", optimizer.clip_grad, "X",
           "Clip the gradient to this global norm. 0: compute no norm, so that each update waits only for its own "
           "gradient.")
      .at_least(0);
  flags
      .add("--skip-nonfinite-steps", optimizer.skip_nonfinite_steps, "N",
           "Go on after a step whose loss or gradient is not finite, without its update, up to N times in a row. 0: "
           "end the "
           "run at the first.")
      .at_least(0);
}

OptimizerSpec optimizer_spec(const OptimizerOptions& options) {
  return {.kind = options.optimizer,
          .clip = options.clip_grad,
          .decay_all = options.decay_all,
          .beta1 = options.adam_beta1,
          .beta2 = options.adam_beta2,
          .eps = options.adam_eps,
          .momentum = options.sgd_momentum};
}

LearningRateSpec learning_rate_spec(const TrainOptions& options) {
  const OptimizerOptions& optimizer = options.optimizer;
  // Exactly one of iterations and samples is set, or neither.
  const auto length = [&](std::int64_t iterations, std::int64_t samples) {
    return static_cast<double>(iterations * options.batch.global_batch_size + samples);
  };
  LearningRateSpec spec;
  spec.lr = optimizer.lr;
  spec.min_lr = optimizer.min_lr;
  spec.warmup_init = optimizer.lr_warmup_init;
  spec.style = optimizer.lr_decay_style;
  spec.decay = length(optimizer.lr_decay_iters, optimizer.lr_decay_samples);
  if (spec.decay == 0) spec.decay = run_samples(options.batch);
  spec.warmup = optimizer.lr_warmup_fraction ? *optimizer.lr_warmup_fraction * spec.decay
                                             : length(optimizer.lr_warmup_iters, optimizer.lr_warmup_samples);
  spec.wsd_style = optimizer.lr_wsd_decay_style;
  spec.wsd = length(optimizer.lr_wsd_decay_iters, optimizer.lr_wsd_decay_samples);
  return spec;
}

WeightDecaySpec weight_decay_spec(const TrainOptions& options) {
  const OptimizerOptions& optimizer = options.optimizer;
  return {.start = optimizer.start_weight_decay.value_or(optimizer.weight_decay),
          .end = optimizer.end_weight_decay.value_or(optimizer.weight_decay),
          .style = optimizer.weight_decay_incr_style,
          .length = run_samples(options.batch)};
}

}  // namespace weft
