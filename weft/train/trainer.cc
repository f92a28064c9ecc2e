#include "weft/train/trainer.h"

#include <chrono>
#include <cmath>
#include <exception>
#include <thread>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/text.h"
#include "weft/checkpoint/hugging_face.h"
#include "weft/checkpoint/model_source.h"
#include "weft/execute/product_peak.h"
#include "weft/plan/draw/perfetto.h"
#include "weft/plan/draw/timeline_page.h"
#include "weft/train/advice.h"
#include "weft/train/checkpoint_control.h"
#include "weft/train/data_source.h"
#include "weft/train/digest.h"
#include "weft/train/library_bytes.h"
#include "weft/train/loss_watch.h"
#include "weft/train/metrics_writer.h"
#include "weft/train/record.h"
#include "weft/train/report.h"
#include "weft/train/same_run.h"
#include "weft/train/sample.h"
#include "weft/train/save_hf.h"
#include "weft/train/tensorboard.h"
#include "weft/train/token_check.h"

namespace weft {

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// The loop of one run.
class Loop {
 public:
  Loop(const TrainOptions& options, const TrainEnvironment& environment);
  int run();

 private:
  void say(const std::string& text) {
    if (rank_ != 0) return;
    std::fputs((text + "\n").c_str(), out_);  // a log that cannot be written does not stop training
    std::fflush(out_);
  }
  // A file that cannot be written, on a full disk, does not end the run: a warning, and training goes on without it.
  template <class Writer, class Write>
  static void write_or_drop(std::unique_ptr<Writer>& writer, const Write& write) {
    if (!writer) return;
    try {
      write(*writer);
    } catch (const RunError& error) {
      fmt::print(stderr, "warning: {}; training goes on without it\n", error.what());
      writer.reset();
    }
  }
  std::string advice(std::int64_t iteration) const {
    return advice_on_not_finite(options_, iteration, position_.consumed_samples);
  }
  // Where --save-hf may go, with the flag that names it, best first.
  std::vector<std::pair<const char*, std::string>> model_folders() const {
    std::vector<std::pair<const char*, std::string>> folders;
    if (!options_.checkpoint.save_hf.empty()) folders.emplace_back("--save-hf", options_.checkpoint.save_hf);
    if (!options_.checkpoint.save_fallback.empty())
      folders.emplace_back("--save-fallback", options_.checkpoint.save_fallback);
    return folders;
  }
  void open_files();
  void open_data();
  void save_model();
  void finish(bool timed);
  std::vector<MicroBatch> next_batches();
  // What one rank does alone and may fail at, before what all do together.
  template <class Result>
  Result alone(const RunPosition& good, const std::function<Result()>& work) {
    Result result;
    std::exception_ptr error;
    try {
      result = work();
    } catch (...) {
      error = std::current_exception();
    }
    control_->require_all_ready(error, good, tell_);
    return result;
  }
  MicroBatch read_batch(const TokenSource& source, std::int64_t first);
  void require_finite(std::int64_t iteration, const StepResult& result, const RunPosition& before);
  void log(std::int64_t iteration, const StepResult& result, double rate, double seconds);
  void print_line(std::int64_t iteration, const StepResult& result, double rate);
  void validate(std::int64_t iteration);
  void write_metrics(std::int64_t iteration, const StepResult& result, double rate, double seconds);

  const TrainOptions& options_;
  std::FILE* out_;
  World* world_;
  const std::int64_t rank_, ranks_;
  Pricer pricer_;
  ModelConfig config_;
  RunData data_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<TensorboardWriter> tensorboard_;
  std::unique_ptr<HuggingFaceSaver> saver_;
  std::int64_t parameters_ = 0;
  double flops_ = 0;         // of a step
  double product_peak_ = 0;  // of the device; 0: not measured
  std::unique_ptr<CheckpointControl> control_;
  RunPosition position_;  // with the step that is under way
  Clock::time_point begin_;
  std::int64_t first_iteration_ = 1;  // of this run
  const CheckpointControl::Say tell_ = [this](const std::string& text) { say(text); };
};

// Files may not be the same on all machines: what is wrong on one rank, or differs, ends all of them here.
void Loop::open_files() {
  const RankExchange ranks(world_, "before the run");
  agree_on_errors(ranks, [&] {
    if (rank_ == 0)
      for (const auto& [flag, folder] : model_folders()) require_savable(flag, folder);
    config_ = run_config(options_);
    if (const CheckpointOptions& c = options_.checkpoint; !c.save_hf.empty())
      saver_ = std::make_unique<HuggingFaceSaver>(options_.model.hf, config_, precision_of(options_).compute,
                                                  HuggingFaceOptions{{}, c.hf_family, c.hf_dtype},
                                                  tokenizer_files(options_.data.tokenizer));
  });
  require_same_model(ranks, config_);
  agree_on_errors(ranks, [&] { open_data(); });
  require_same_data(ranks, data_.splits);
}

void Loop::open_data() {
  data_ = open_run_data(options_, config_.vocabulary);
  for (const std::string& prompt : options_.logging.sample) {
    if (!data_.tokenizer)
      throw UserError(
          "--sample '{}': the model in {} has a tokenizer of its own, and the folder holds no tokenizer.json or "
          "tokenizer.model; name it with --tokenizer-model, or take token ids with --tokenizer-type NullTokenizer",
          prompt, options_.model.hf);
    encode_prompt(*data_.tokenizer, prompt, config_.vocabulary);
  }
}

Loop::Loop(const TrainOptions& options, const TrainEnvironment& environment)
    : options_(options),
      out_(environment.out),
      world_(environment.world),
      rank_(world_ ? world_->rank().value : 0),
      ranks_(world_ ? world_->size() : 1),
      pricer_(environment.pricer) {
  // Looks for what would end a long run before it begins.
  open_files();
  SessionOptions session = session_options(options, config_, world_);
  session.ranks.on_device = environment.ranks_on_device;
  session.validates = data_.splits.valid != nullptr;
  session.samples = !options.logging.sample.empty();
  // Before the run takes the memory. A CPU's peak depends on what else runs; it takes long, too.
  if (environment.device.asynchronous())
    product_peak_ = measure_product_peak(environment.device, session.precision.compute);
  session_ = std::make_unique<Session>(environment.device, session);
  control_ = std::make_unique<CheckpointControl>(options, *session_, environment.signals);
  position_ = control_->begin(tell_);
  require_same_weights(*session_);
  if (rank_ == 0)
    for (const auto& [flag, folder] : model_folders()) saver_->require_room(flag, folder);

  PlanReport report = report_of(*session_, options, environment.pricer);
  if (!world_) report.library_bytes = measure_library_bytes(*session_);  // of a process; ranks may share one
  report.product_peak = product_peak_;
  parameters_ = report.parameters.all;
  const auto own_flops = static_cast<std::int64_t>(report.flops);
  for (const std::int64_t flops : session_->ranks().gather(std::span(&own_flops, 1)))
    flops_ += static_cast<double>(flops);
  const std::string launch = session_->executor() ? session_->executor()->launch_text() : "";
  say(fmt::format("training on {}{}{}", environment.device.name(), launch.empty() ? "" : "; ", launch));
  if (environment.device.asynchronous() && !session.repeatable_attention)
    say("warning: --attention-backward fastest: two runs of this differ in their last bits, and so will what follows");
  say(to_text(report));
  if (rank_ != 0) return;
  if (!options.logging.metrics.empty())
    metrics_ = std::make_unique<MetricsWriter>(options.logging.metrics, position_.iteration);
  write_or_drop(metrics_, [&](MetricsWriter& metrics) { control_->write_differences(metrics); });
  if (!options.logging.tensorboard_dir.empty())
    tensorboard_ = std::make_unique<TensorboardWriter>(options.logging.tensorboard_dir, position_.iteration);
}

// Of samples from `first` on. What would end a step is found before it, when the state can still be saved.
MicroBatch Loop::read_batch(const TokenSource& source, std::int64_t first) {
  MicroBatch batch = source.sample_batch(first, static_cast<int>(options_.batch.micro_batch_size));
  if (control_->saves()) check_tokens(batch, config_.vocabulary);
  return batch;
}

std::vector<MicroBatch> Loop::next_batches() {
  // In each block of micro_batch_size x ranks samples, rank r takes the r-th part: as in Megatron, and the set of
  // samples in a step does not depend on the number of ranks.
  const std::int64_t batch = options_.batch.micro_batch_size;
  std::vector<MicroBatch> batches;
  for (int m = 0; m < session_->options().plan.micro_batches; ++m)
    batches.push_back(
        read_batch(*data_.splits.train, position_.consumed_samples + session_->options().layout.shard_of(m) * batch));
  return batches;
}

int Loop::run() {
  const LearningRateSpec rates = learning_rate_spec(options_);
  const WeightDecaySpec decays = weight_decay_spec(options_);
  const std::int64_t iterations = options_.batch.train_iters, interval = options_.data.eval_interval;
  if (!data_.splits.train)
    throw UserError("there is no training data: the split '{}' gives none to it", options_.data.split);
  if (data_.letter_entropy > 0)
    say(fmt::format("guessing by letter frequency would lose {:.4f} per token; a good model does much better",
                    data_.letter_entropy));
  begin_ = Clock::now();
  first_iteration_ = position_.iteration + 1;
  const std::int64_t last = control_->last_iteration();
  bool timed = false;  // the last step
  std::string stopped;
  if (first_iteration_ > last)
    say(fmt::format("iteration {} is done already, and --train-iters is {}: there is nothing to train",
                    position_.iteration, iterations));
  for (std::int64_t iteration = first_iteration_; iteration <= last && stopped.empty(); ++iteration) {
    const RunPosition before = position_;
    const double rate = learning_rate(rates, before.consumed_samples),
                 decay = weight_decay(decays, before.consumed_samples);
    timed = iteration == last;
    if (timed && session_->executor()) session_->executor()->keep_times(true);
    const auto start = Clock::now();
    const auto batches = alone<std::vector<MicroBatch>>(before, [this] { return next_batches(); });
    position_.consumed_samples += options_.batch.global_batch_size;
    StepResult result = control_->step(batches, rate, decay, before, tell_);
    // "nan", not "-nan": its sign means nothing
    if (std::isnan(result.loss)) result.loss = std::fabs(result.loss);
    if (result.gradient_norm && std::isnan(*result.gradient_norm))
      result.gradient_norm = std::fabs(*result.gradient_norm);
    const double seconds = seconds_since(start);
    write_metrics(iteration, result, rate, seconds);
    require_finite(iteration, result, before);
    log(iteration, result, rate, seconds);
    position_.iteration = iteration;
    position_.optimizer_steps = session_->steps_taken();
    if ((interval > 0 && iteration % interval == 0) || iteration == iterations) validate(iteration);
    stopped = control_->after_step(position_, iteration == last, tell_);
  }
  session_->flush_updates();
  if (!stopped.empty()) say(fmt::format("stopped after iteration {}: {}", position_.iteration, stopped));
  say(fmt::format("trained {} iterations in {}", position_.iteration - first_iteration_ + 1,
                  human_seconds(seconds_since(begin_))));
  if (session_->executor() && !session_->executor()->choice().empty()) say(session_->executor()->choice());
  finish(timed);
  return 0;
}

// Ends the run at a step whose loss or gradient is not finite, unless such steps are skipped.
void Loop::require_finite(std::int64_t iteration, const StepResult& result, const RunPosition& before) {
  if (result.finite) {
    position_.not_finite_in_a_row = 0;
    if (const std::string remark = look_at_loss(position_.loss_trend, result.loss); !remark.empty())
      say(fmt::format("warning: iteration {}: {}", iteration, remark));
    return;
  }
  const char* const what = std::isfinite(result.loss) ? "gradient" : "loss";
  const std::int64_t allowed = options_.optimizer.skip_nonfinite_steps;
  if (++position_.not_finite_in_a_row <= allowed) {
    say(fmt::format("warning: iteration {}: the {} is not finite; the step is skipped", iteration, what));
    return;
  }
  position_.unlogged = {.not_finite = 1};
  print_line(iteration, result, learning_rate(learning_rate_spec(options_), before.consumed_samples));
  if (result.gradient_norm) control_->save_before_end(before, tell_);
  // Without a norm, gradients of earlier steps were not checked, and their state may not be worth saving.
  throw RunError("iteration {}: the {} is not finite{} (loss {}, gradient norm {}); {}. {}", iteration, what,
                 allowed > 0 ? fmt::format(", after {} that were skipped", allowed) : "", result.loss,
                 result.gradient_norm ? fmt::format("{}", *result.gradient_norm) : "not computed: --clip-grad 0",
                 result.gradient_norm ? "weights were left as they were"
                                      : "weights were left as the step before made them, finite or not",
                 advice(iteration));
}

void Loop::log(std::int64_t iteration, const StepResult& result, double rate, double seconds) {
  LogSums& sums = position_.unlogged;
  if (result.finite) {
    ++sums.steps;
    sums.loss += result.loss;
    sums.seconds += seconds;
    sums.mtp_losses.resize(result.mtp_losses.size());
    for (std::size_t d = 0; d < sums.mtp_losses.size(); ++d) sums.mtp_losses[d] += result.mtp_losses[d];
  } else {
    ++sums.skipped;
    ++sums.not_finite;
  }
  // A run that goes on has the lines of one that was never stopped.
  if (iteration % options_.logging.log_interval == 0 || iteration == 1) print_line(iteration, result, rate);
}

void Loop::print_line(std::int64_t iteration, const StepResult& result, double rate) {
  const LogSums& sums = position_.unlogged;
  const auto steps = static_cast<double>(std::max<std::int64_t>(sums.steps, 1));
  LogLine line;
  line.iteration = iteration;
  line.iterations = options_.batch.train_iters;
  line.consumed_samples = position_.consumed_samples;
  line.global_batch = options_.batch.global_batch_size;
  line.step_seconds = sums.steps > 0 ? sums.seconds / steps : seconds_since(begin_);
  line.flops_per_second = flops_ / line.step_seconds;
  line.product_peak = product_peak_ * static_cast<double>(ranks_);
  line.tokens_per_second =
      static_cast<double>(options_.batch.global_batch_size * options_.batch.seq_length) / line.step_seconds;
  line.learning_rate = rate;
  line.loss = sums.steps > 0 ? sums.loss / steps : result.loss;
  line.gradient_norm = result.gradient_norm;
  line.router_losses =
      named_losses(config_.experts.balance, session_->module(), result, options_.logging.moe_per_layer);
  for (double sum : sums.mtp_losses) line.mtp_losses.push_back(sum / steps);
  line.seconds_left = seconds_since(begin_) / static_cast<double>(iteration - first_iteration_ + 1) *
                      static_cast<double>(line.iterations - iteration);
  line.skipped = sums.skipped;
  line.not_finite = sums.not_finite;
  say(to_text(line));
  position_.unlogged = {};
}

void Loop::write_metrics(std::int64_t iteration, const StepResult& result, double rate, double seconds) {
  const double tokens = static_cast<double>(options_.batch.global_batch_size * options_.batch.seq_length) / seconds;
  // "mtp_1_loss", ...
  std::vector<std::string> mtp_names;
  for (std::size_t d = 1; d <= result.mtp_losses.size(); ++d) mtp_names.push_back(fmt::format("mtp_{}_loss", d));
  const auto router = named_losses(config_.experts.balance, session_->module(), result, options_.logging.moe_per_layer);
  write_or_drop(metrics_, [&](MetricsWriter& metrics) {
    std::vector<Metric> line = {{"iteration", iteration},
                                {"loss", result.loss},
                                {"learning_rate", rate},
                                {"step_seconds", seconds},
                                {"tokens_per_second", tokens},
                                {"gflops", flops_ / seconds * 1e-9},
                                {"consumed_samples", position_.consumed_samples}};
    if (result.gradient_norm) line.insert(line.begin() + 2, {"grad_norm", *result.gradient_norm});
    if (product_peak_ > 0)
      line.push_back({"share_of_gemm_peak", flops_ / seconds / (product_peak_ * static_cast<double>(ranks_))});
    for (std::size_t d = 0; d < mtp_names.size(); ++d) line.push_back({mtp_names[d], result.mtp_losses[d]});
    for (const auto& [name, loss] : router) line.push_back({name, loss});
    metrics.write(line);
  });
  write_or_drop(tensorboard_, [&](TensorboardWriter& board) {
    board.scalar("lm loss", iteration, result.loss);
    for (std::size_t d = 0; d < mtp_names.size(); ++d)
      board.scalar(fmt::format("mtp_{} loss", d + 1), iteration, result.mtp_losses[d]);
    if (result.gradient_norm) board.scalar("grad-norm", iteration, *result.gradient_norm);
    board.scalar("learning-rate", iteration, rate);
    board.scalar("iteration-time", iteration, seconds);
    for (const auto& [name, loss] : router) board.scalar(name, iteration, loss);
    board.scalar("batch-size", iteration, static_cast<double>(options_.batch.global_batch_size));
  });
}

void Loop::validate(std::int64_t iteration) {
  if (const TokenSource* valid = data_.splits.valid.get()) {
    const auto start = Clock::now();
    // An evaluation step reads a global batch, so that the loss does not depend on the number of ranks.
    const std::int64_t batch = options_.batch.micro_batch_size, all = options_.batch.global_batch_size;
    double sum = 0, weight = 0;
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < options_.data.eval_iters && (i + 1) * all <= valid->samples(); ++i)
      for (int m = 0; m < session_->options().plan.micro_batches; ++m, ++count) {
        const EvaluationLosses losses = session_->evaluator().losses(alone<MicroBatch>(position_, [&, this] {
          return read_batch(*valid, i * all + session_->options().layout.shard_of(m) * batch);
        }));
        sum += losses.loss * losses.weight;
        weight += losses.weight;
      }
    if (count > 0) {
      const double loss = weight > 0 ? sum / weight : 0;
      if (!std::isfinite(loss)) {
        control_->save_before_end(position_, tell_);
        throw RunError("the validation loss at iteration {} is not finite ({}), though the last step's loss was. {}",
                       iteration, std::fabs(loss), advice(iteration + 1));
      }
      say(fmt::format(
          " validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ({} batches in {})",
          iteration, loss, std::exp(std::min(20.0, loss)), count, human_seconds(seconds_since(start))));
      write_or_drop(metrics_, [&](MetricsWriter& metrics) {
        metrics.write({{"iteration", iteration}, {"validation_loss", loss}});
      });
      write_or_drop(tensorboard_,
                    [&](TensorboardWriter& board) { board.scalar("lm loss validation", iteration, loss); });
    }
  }
  for (const std::string& prompt : options_.logging.sample) {
    SampleOptions sampling;
    sampling.length = options_.logging.sample_length;
    sampling.temperature = options_.logging.sample_temperature;
    sampling.seed = static_cast<std::uint64_t>(options_.data.seed);
    say(fmt::format("--- {}[{}]\n---", prompt, sample(*session_, *data_.tokenizer, prompt, sampling)));
  }
}

// Trained weights must not be lost: tries again until they are in one of the folders, unless a checkpoint has them.
void Loop::save_model() {
  for (std::chrono::seconds pause(1);; pause = std::min(2 * pause, std::chrono::seconds(32))) {
    for (const auto& [flag, folder] : model_folders()) {
      const std::string error = saver_->save(*session_, folder);
      if (error.empty()) return say("model: " + folder);
      if (rank_ == 0) fmt::print(stderr, "warning: {} {}: {}\n", flag, folder, error);
    }
    if (control_->has_saved(position_.iteration))
      throw RunError(
          "the model is not written, but the checkpoint of iteration {} in {} has its weights: free space, then "
          "run this again with --load {}",
          position_.iteration, options_.checkpoint.save, options_.checkpoint.save);
    if (rank_ == 0)
      fmt::print(stderr, "warning: the model is not written yet: free space; trying again in {} s\n", pause.count());
    std::this_thread::sleep_for(pause);
  }
}

// The model first: nothing that fails after it can cost it. Then what the last step did, on all ranks; how much of the
// exchange was hidden; the digest.
// timed: the executor kept the times of the last step.
void Loop::finish(bool timed) {
  if (saver_) save_model();
  if (!timed && (!options_.execution.trace.empty() || !options_.execution.timeline.empty()))
    say("nothing is drawn: the run ended before the step that was to be drawn");
  if (session_->executor() && timed) {
    Timeline actual = record_timeline(*session_, "weft train: last step");
    if (rank_ == 0) {
      const std::vector<Overlap> all = overlaps_of(actual, Lane::exchange);
      const Overlap sum = sum_of(all);
      if (sum.communication > 0)
        say(fmt::format("exchange {} per rank in the last step, {:.1f} % of it hidden behind computation",
                        human_seconds(sum.communication / static_cast<double>(ranks_)), 100 * sum.share_hidden()));
      const LayoutPlans plans(training_step(session_->options()), pricer_);
      Timeline planned = estimate_timeline(plans.ranks(), {});
      planned.title = actual.title;
      planned.stages = plans.stages();
      planned.about = actual.about = about_text(options_, config_.pattern, parameters_);
      actual.times = "measured on " + session_->device().name();
      if (!options_.execution.trace.empty()) {
        write_file_atomically(options_.execution.trace, perfetto_trace(actual));
        say("trace: " + options_.execution.trace);
      }
      if (!options_.execution.timeline.empty()) {
        write_file_atomically(options_.execution.timeline, timeline_page(planned, &actual));
        say("timeline: " + options_.execution.timeline);
      }
    }
  }
  if (options_.execution.digest) {
    const std::string digest = weight_digest(*session_);
    say("digest " + digest);
  }
}

}  // namespace

ModelConfig run_config(const TrainOptions& o) {
  if (o.model.hf.empty()) return model_config(o);
  ModelConfig config = read_model_config(o.model.hf);
  config.mtp_loss_factor = o.model.mtp_loss_scaling_factor;
  config.latent_attention.indexer.loss_factor = o.model.dsa_indexer_loss_coeff;
  config.experts.balance = balance_spec(o.model);  // a family's config has none of it
  if (o.model.moe_router_enable_expert_bias && !config.experts.expert_bias)
    throw UserError("--moe-router-enable-expert-bias: the model in {} has no such bias; drop the flag", o.model.hf);
  if (config.max_positions > 0 && o.batch.seq_length > config.max_positions)
    throw UserError("--seq-length {}: the model in {} is made for at most {} positions (max_position_embeddings)",
                    o.batch.seq_length, o.model.hf, config.max_positions);
  return config;
}

void load_parameters(Session& session, const TrainOptions& o) {
  if (o.model.hf.empty() || !has_weights(o.model.hf))
    return session.initialise_parameters(static_cast<std::uint64_t>(o.data.seed));
  const std::unique_ptr<ModelSource> source = open_model(o.model.hf);
  session.set_parameters(
      [&](const ParameterPart& part, HostTensor& tensor) { source->read(Content::weight, part, tensor); });
}

int train(const TrainOptions& options, const TrainEnvironment& environment) {
  const ExecutionOptions& e = options.execution;
  if (e.executor == ExecutorKind::serial && (!e.trace.empty() || !e.timeline.empty()))
    throw UserError("{} shows lanes at work, and the serial executor has none; use --executor parallel",
                    e.trace.empty() ? "--timeline" : "--trace");
  return Loop(options, environment).run();
}

}  // namespace weft
