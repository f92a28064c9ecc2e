#include "weft/train/session.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include <unistd.h>

#include "weft/base/error.h"
#include "weft/comm/host_stream.h"
#include "weft/device/operations/optimizer.h"
#include "weft/plan/check/check_ranks.h"
#include "weft/train/memory_check.h"
#include "weft/train/token_check.h"

namespace weft {

namespace {

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

StepOptions training_step(const SessionOptions& o) {
  StepOptions step;
  step.config = o.config;
  step.adam = o.adam;
  step.plan = o.plan;
  step.plan.overlap_updates &= o.updates();
  step.module.precision = o.precision;
  step.module.layout = o.layout;
  step.module.batch = o.batch;
  step.module.length = o.length;
  step.module.logits_slice_bytes = o.logits_slice_bytes;
  step.module.repeatable_attention = o.repeatable_attention;
  return step;
}

StepOptions evaluation_step(const SessionOptions& options, const EvaluationShape& shape) {
  StepOptions step = training_step(options);
  step.module.batch = shape.batch;
  step.module.length = shape.length;
  step.module.keep_logits = shape.keep_logits;
  step.plan = {};
  step.plan.kind = PlanKind::evaluate;
  step.plan.host_counts = options.plan.host_counts;
  return step;
}

Session::Session(Device& device, const SessionOptions& options)
    : device_(device), options_(options), stream_(device.make_stream(options.threads)) {
  const RankOptions& ranks = options.ranks;
  if (!device.computes_in(options.precision.compute))
    throw UserError("{} does not compute in {}: drop --fp64, or use --device cpu", device.name(),
                    name_of(options.precision.compute));
  WEFT_CHECK(ranks.world ? ranks.world->size() == options.layout.ranks() && ranks.world->rank() == options.layout.rank()
                         : options.layout.ranks() == 1,
             "a layout of {} ranks for another world", options.layout.ranks());
  StepPlan step = plan_step(training_step(options));
  Plan plan = std::move(step.plan);
  require_target(options.fault, plan, options.layout.ranks());
  need_ = count_memory(device, options, step.module, plan, step.memory);
  module_ = std::move(step.module);
  if (ranks.world) need_.communicators = make_groups(plan);
  require_memory(device, options, need_);
  wait_for_all_ranks("memory");  // nobody takes memory before all have seen what is free
  stream_->reserve(need_.streams.lanes[static_cast<std::size_t>(Lane::compute)]);
  storage_ = std::make_unique<ModelStorage>(device, module_);
  train_ = prepare(module_, std::move(plan), need_.plan);
  train_->set_results(step_results());
  forget_updates();
  if (options.fault.rank == options.layout.rank().value) train_->inject(options.fault, ranks.world);
  if (ranks.parallel) {
    executor_ = make_executor(*train_, device, *stream_, ranks.executor, need_.streams);
    if (ranks.world) ranks.world->set_status([this] { return executor_->status(); });
  }
}

Session::~Session() {
  if (options_.ranks.world) options_.ranks.world->set_status({});
}

// Returns what it took of a GPU, a rank's share where ranks have one together.
std::int64_t Session::make_groups(const Plan& plan) {
  const RankOptions& ranks = options_.ranks;
  groups_ = std::make_unique<RankGroups>(*ranks.world, device_, options_.layout);
  const std::size_t before = device_.free_bytes();
  wait_for_all_ranks("before groups");
  groups_->add(plan);
  wait_for_all_ranks("groups");
  const std::size_t after = device_.free_bytes();
  if (!device_.asynchronous() || after > before) return 0;  // a CPU's memory is not theirs alone
  return static_cast<std::int64_t>(before - after) / ranks.on_device;
}

void Session::wait_for_all_ranks(const std::string& what) {
  if (!options_.ranks.world) return;
  HostStream host;
  options_.ranks.world->make_group_of_all(what)->barrier(host);
}

std::unique_ptr<PreparedPlan> Session::prepare(const Module& module, Plan plan, const MemoryPlan& memory) {
  if (groups_) groups_->add(plan);
  auto prepared =
      std::make_unique<PreparedPlan>(module, std::move(plan), memory, device_, *storage_, *stream_, groups_.get());
  check_all_ranks(*prepared);
  return prepared;
}

// Ranks of one class run one plan: each compares its digest with the others', and the first checks that plan for all.
void Session::check_all_ranks(const PreparedPlan& prepared) {
  if (!prepared.plan().collectives.empty()) {
    const auto own = static_cast<std::int64_t>(digest_of(prepared.plan()));
    const std::vector<std::int64_t> all = gather_from_all_ranks(std::span(&own, 1));
    for (std::size_t r = 1; r < all.size(); ++r)
      if (all[r] != all[0]) throw BugError(fmt::format("ranks 0 and {} have different plans", r));
  }
  if (options_.layout.rank().value == 0)
    require_valid(same_on_all_ranks(options_.layout, prepared.plan(), prepared.memory()));
}

void Session::run_training_plan() {
  World* world = options_.ranks.world;
  try {
    if (executor_) {
      executor_->run_step([world](const std::string& message) {
        if (world) world->abort(message);
      });
    } else {
      run_serially(*train_, *stream_);
    }
  } catch (const PeerError&) {
    throw;
  } catch (const std::exception& e) {
    if (!world) throw;
    throw RunError("rank {}, {}", world->rank().value, e.what());
  }
}

// Numbers that say "not finite": the next step's carried updates do nothing.
void Session::forget_updates() {
  updates_left_ = false;
  if (!training_step(options_).plan.overlap_updates) return;
  train_->write(*stream_, module_.update_values, std::vector<double>(StepValues::count));
  if (executor_) executor_->nothing_carried();
}

void Session::flush_updates() {
  if (!updates_left_) return;
  const std::vector<Node>& nodes = train_->plan().nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].carried) train_->run_node(NodeId(static_cast<std::int64_t>(i)), *stream_, true);
  forget_updates();
}

void Session::set_parameters(const ParameterSource& source) {
  forget_updates();
  for (std::size_t i = 0; i < module_.parameters.size(); ++i) {
    const ParameterTensor& tensor = module_.parameters[i];
    std::vector<double> values(static_cast<std::size_t>(tensor.shape.elements()));
    for (const ParameterPart& part : tensor.parts) source(part, values.data() + part.offset);
    storage_->write_parameter(*stream_, TensorId(static_cast<std::int64_t>(i)), values);
  }
  steps_ = 0;
}

void Session::initialise_parameters(std::uint64_t seed) {
  set_parameters([seed](const ParameterPart& part, double* values) { initialise(part, seed, values); });
}

std::vector<double> Session::parameter_values(std::size_t tensor) {
  flush_updates();
  return storage_->read_parameter(*stream_, TensorId(static_cast<std::int64_t>(tensor)));
}

void Session::each_parameter(const ParameterSink& sink) {
  for (std::size_t i = 0; i < module_.parameters.size(); ++i) {
    const std::vector<double> values = parameter_values(i);
    for (const ParameterPart& part : module_.parameters[i].parts)
      sink(part, std::span(values).subspan(static_cast<std::size_t>(part.offset),
                                           static_cast<std::size_t>(part.shape.elements())));
  }
}

void Session::each_gradient(const ParameterSink& sink) {
  for (std::size_t i = 0; i < module_.parameters.size(); ++i) {
    if (!module_.parameters[i].trained) continue;
    const std::vector<double> values =
        storage_->read(*stream_, storage_->gradient(TensorId(static_cast<std::int64_t>(i))));
    for (const ParameterPart& part : module_.parameters[i].parts)
      sink(part, std::span(values).subspan(static_cast<std::size_t>(part.offset),
                                           static_cast<std::size_t>(part.shape.elements())));
  }
}

void Session::feed(const PreparedPlan& plan, const Module& module, std::span<const MicroBatch> batches,
                   double learning_rate, double decay) {
  const auto micro_batches = static_cast<double>(batches.size()), ranks = static_cast<double>(data_ranks());
  std::int64_t counted = -1;  // every micro-batch counts the same; within it every counted token does
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const MicroBatch& batch = batches[i];
    const int micro_batch = static_cast<int>(i);
    const std::int64_t here =
        copy_checked(batch, options_.config.vocabulary, plan.input_ints(module.tokens, micro_batch),
                     plan.input_ints(module.labels, micro_batch));
    WEFT_CHECK(counted < 0 || counted == here, "micro-batches count {} and {} tokens", counted, here);
    counted = here;
    if (module.mtp_losses.empty()) continue;
    // As of the main loss: within a micro-batch every token counts the same that the depth predicts.
    const std::span<double> scales = plan.input_doubles(module.mtp_scales, micro_batch);
    std::int64_t predicted = here;
    for (std::size_t d = 0; d < scales.size(); ++d) {
      predicted -= counted_labels_at(batch, static_cast<std::int64_t>(d));
      scales[d] =
          mtp_factor(module) / (static_cast<double>(std::max<std::int64_t>(predicted, 1)) * micro_batches * ranks);
    }
  }
  const double scale = 1.0 / (static_cast<double>(std::max<std::int64_t>(counted, 1)) * micro_batches) / ranks;
  write_step_values(plan.input_doubles(module.step_values), learning_rate, decay, scale);
}

double Session::mtp_factor(const Module& module) const {
  return options_.config.mtp_loss_factor / static_cast<double>(module.mtp_losses.size());
}

std::vector<double> Session::read_mtp_losses(const PreparedPlan& plan, const Module& module) {
  std::vector<double> losses;
  for (ValueId loss : module.mtp_losses) losses.push_back(plan.read(*stream_, loss)[0] / mtp_factor(module));
  return losses;
}

void Session::write_step_values(std::span<double> values, double learning_rate, double decay, double loss_scale) const {
  const auto t = static_cast<double>(steps_ + 1);
  values[StepValues::learning_rate] = learning_rate;
  values[StepValues::weight_decay] = decay;
  values[StepValues::correction1] = 1 - std::pow(options_.adam.beta1, t);
  values[StepValues::correction2] = 1 - std::pow(options_.adam.beta2, t);
  values[StepValues::loss_scale] = loss_scale;
  values[StepValues::router_loss_scale] =
      1.0 / (static_cast<double>(options_.plan.micro_batches) * static_cast<double>(data_ranks()));
}

std::vector<ValueId> Session::step_results() const {
  std::vector<ValueId> results{module_.loss};
  results.insert(results.end(), module_.mtp_losses.begin(), module_.mtp_losses.end());
  for (ValueId value : {module_.router_losses, module_.indexer_loss})
    if (value.valid()) results.push_back(value);
  if (options_.updates()) results.push_back(module_.update_values);
  return results;
}

StepResult Session::step(std::span<const MicroBatch> batches, double learning_rate, double decay) {
  WEFT_CHECK(std::ssize(batches) == options_.plan.micro_batches, "{} batches for {} micro-batches", batches.size(),
             options_.plan.micro_batches);
  feed(*train_, module_, batches, learning_rate, decay);
  run_training_plan();
  StepResult result;
  result.loss = train_->result(module_.loss)[0];
  for (ValueId loss : module_.mtp_losses) result.mtp_losses.push_back(train_->result(loss)[0] / mtp_factor(module_));
  if (module_.router_losses.valid()) {
    result.router_losses = train_->result(module_.router_losses);
    for (double& loss : result.router_losses) loss /= module_.router_layers;
  }
  if (module_.indexer_loss.valid()) result.indexer_loss = train_->result(module_.indexer_loss)[0];
  if (!options_.updates()) return result;
  updates_left_ = options_.plan.overlap_updates;
  const std::vector<double> values = train_->result(module_.update_values);
  if (options_.adam.clip > 0) result.gradient_norm = values[StepValues::gradient_norm];
  result.finite = values[StepValues::finite] != 0;
  if (result.finite) ++steps_;
  return result;
}

StepResult Session::gradients(std::span<const MicroBatch> batches) {
  WEFT_CHECK(!options_.updates(), "this session trains");
  StepResult result = step(batches, 0, 0);
  double squares = 0;
  each_gradient([&](const ParameterPart&, std::span<const double> values) {
    for (double value : values) squares += value * value;
  });
  result.gradient_norm = std::sqrt(squares);
  return result;
}

Session::Evaluation& Session::evaluation(const EvaluationShape& shape) {
  for (auto& [known, made] : evaluations_)
    if (known == shape) return *made;
  auto made = std::make_unique<Evaluation>();
  StepPlan step = plan_step(evaluation_step(options_, shape));
  made->module = std::move(step.module);
  made->plan = prepare(made->module, std::move(step.plan), step.memory);
  evaluations_.emplace_back(shape, std::move(made));
  return *evaluations_.back().second;
}

StepResult Session::evaluate_on(Evaluation& evaluation, const MicroBatch& batch) {
  flush_updates();
  feed(*evaluation.plan, evaluation.module, std::span(&batch, 1), 0, 0);
  run_serially(*evaluation.plan, *stream_);
  StepResult result;
  result.loss = evaluation.plan->read(*stream_, evaluation.module.loss)[0];
  result.mtp_losses = read_mtp_losses(*evaluation.plan, evaluation.module);
  return result;
}

double Session::evaluate(const MicroBatch& batch) { return evaluate_losses(batch).loss; }

StepResult Session::evaluate_losses(const MicroBatch& batch) {
  return evaluate_on(evaluation({options_.batch, options_.length, false}), batch);
}

std::vector<double> Session::batch_logits(const MicroBatch& batch) {
  Evaluation& e = evaluation({options_.batch, options_.length, true});
  evaluate_on(e, batch);
  return e.plan->read(*stream_, e.module.logits, 0);
}

std::vector<double> Session::logits(std::span<const std::int32_t> tokens) {
  WEFT_CHECK(!tokens.empty() && std::ssize(tokens) <= options_.length, "{} tokens of at most {}", tokens.size(),
             options_.length);
  // One plan for all lengths: causal layers never look behind the last token, and experts drop none, so what follows it
  // does not matter.
  Evaluation& e = evaluation({1, options_.length, true});
  MicroBatch batch;
  batch.batch = 1;
  batch.length = options_.length;
  batch.tokens.assign(tokens.begin(), tokens.end());
  batch.tokens.resize(static_cast<std::size_t>(options_.length), 0);
  batch.labels.assign(batch.tokens.size(), -1);
  evaluate_on(e, batch);
  std::vector<double> all = e.plan->read(*stream_, e.module.logits, 0);
  all.resize(tokens.size() * static_cast<std::size_t>(options_.config.embedding_rows()));
  return all;
}

std::int64_t Session::measure_library_bytes() {
  flush_updates();  // gradients are overwritten here
  storage_->touch_memory();
  train_->touch_memory();
  const auto used = [this] {
    return device_.asynchronous() ? -static_cast<std::int64_t>(device_.free_bytes()) : resident_bytes();
  };
  const std::int64_t before = used();
  for (ValueId tokens : {module_.tokens, module_.labels}) {
    const std::span<std::int32_t> zeros = train_->input_ints(tokens, 0);
    std::fill(zeros.begin(), zeros.end(), 0);
  }
  write_step_values(train_->input_doubles(module_.step_values), 0, 0, 1);
  if (!module_.mtp_losses.empty()) {
    const std::span<double> ones = train_->input_doubles(module_.mtp_scales, 0);
    std::fill(ones.begin(), ones.end(), 1.0);
  }
  train_->queue_inputs(*stream_);
  const Plan& plan = train_->plan();
  for (std::size_t i = 0; i < plan.nodes.size(); ++i)
    if (plan.nodes[i].micro_batch == 0) train_->run_node(NodeId(static_cast<std::int64_t>(i)), *stream_);
  stream_->synchronize();
  return std::max<std::int64_t>(0, used() - before);
}

std::vector<std::int64_t> Session::gather_from_expert_ranks(std::span<const std::int64_t> words) {
  return gather(groups_->get(options_.layout.expert_ranks(), Lane::exchange), words);
}

std::vector<std::int64_t> Session::gather_from_all_ranks(std::span<const std::int64_t> words) {
  if (options_.layout.ranks() == 1) return {words.begin(), words.end()};
  return gather(groups_->get(options_.layout.data_ranks(), Lane::reduce), words);
}

void Session::broadcast_to_expert_ranks(int from, std::span<double> values) {
  const Tensor all(exchange_memory(values.size_bytes()), DType::f64, {std::ssize(values)});
  run_to_the_end(*stream_, [&] {
    device_.copy_in(*stream_, all.data, values.data(), values.size_bytes());
    groups_->get(options_.layout.expert_ranks(), Lane::exchange).broadcast(*stream_, all, from);
    device_.copy_out(*stream_, values.data(), all.data, values.size_bytes());
  });
  options_.ranks.world->throw_if_ended();  // a stream also runs empty when another rank has failed
}

// Kept until the end: to free memory of a GPU is to wait for all that runs there, and what other ranks run there may
// wait for this one.
std::byte* Session::exchange_memory(std::size_t bytes) {
  if (exchange_memory_.empty() || exchange_memory_.back()->bytes() < bytes)
    exchange_memory_.push_back(device_.allocate(std::max<std::size_t>(2 * bytes, 4096)));
  return exchange_memory_.back()->data();
}

std::vector<std::int64_t> Session::gather(Communicator& group, std::span<const std::int64_t> words) {
  const auto count = std::ssize(words);
  std::byte* memory = exchange_memory(words.size_bytes() * static_cast<std::size_t>(group.size() + 1));
  const Tensor send(memory, DType::i64, {count});
  const Tensor receive(memory + words.size_bytes(), DType::i64, {count * group.size()});
  std::vector<std::int64_t> all(static_cast<std::size_t>(count * group.size()));
  run_to_the_end(*stream_, [&] {
    device_.copy_in(*stream_, send.data, words.data(), words.size_bytes());
    group.all_gather(*stream_, send, receive);
    device_.copy_out(*stream_, all.data(), receive.data, receive.bytes());
  });
  options_.ranks.world->throw_if_ended();
  return all;
}

}  // namespace weft
