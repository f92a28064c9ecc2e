#include "weft/train/session.h"

#include <cmath>

#include "weft/base/error.h"
#include "weft/device/operations/optimizer.h"
#include "weft/train/memory_check.h"
#include "weft/train/rank_plans_check.h"
#include "weft/train/token_check.h"

namespace weft {

StepOptions training_step(const SessionOptions& o) {
  StepOptions step;
  step.config = o.config;
  step.optimizer = o.optimizer;
  step.plan = o.plan;
  step.plan.overlap_updates &= o.updates();
  step.module.precision = o.precision;
  step.module.layout = o.layout;
  step.module.sequence_parallel = o.sequence_parallel;
  step.module.context_transfers = o.context_transfers;
  step.module.batch = o.batch;
  step.module.length = o.length;
  step.module.packing = o.packing;
  step.module.logits_slice_bytes = o.logits_slice_bytes;
  step.module.repeatable_attention = o.repeatable_attention;
  step.module.sharding = o.sharding;
  step.module.shard_over_instances = o.shard_over_instances;
  step.module.split = o.split;
  return step;
}

StepOptions evaluation_step(const SessionOptions& options, const EvaluationShape& shape) {
  StepOptions step = training_step(options);
  step.module.batch = shape.batch;
  step.module.length = shape.length;
  step.module.keep_logits = shape.keep_logits;
  step.plan = {};
  step.plan.kind = PlanKind::evaluate;
  step.plan.gather_by_piece = options.plan.gather_by_piece;
  step.plan.gather_ahead = options.plan.gather_ahead;
  step.plan.two_buffers = options.plan.two_buffers;
  return step;
}

Session::Session(Device& device, const SessionOptions& options)
    : device_(device),
      options_(options),
      stream_(device.make_stream(options.threads)),
      exchange_(options.ranks.world),
      inputs_(options.config, options.optimizer, options.layout) {
  const RankOptions& ranks = options.ranks;
  if (!device.computes_in(options.precision.compute))
    throw UserError("{} does not compute in {}: drop --fp64, or use --device cpu", device.name(),
                    name_of(options.precision.compute));
  WEFT_CHECK(ranks.world ? ranks.world->size() == options.layout.ranks() && ranks.world->rank() == options.layout.rank()
                         : options.layout.ranks() == 1,
             "a layout of {} ranks for another world", options.layout.ranks());
  const StepOptions made_from = training_step(options);
  StepPlan step = plan_step(made_from);
  Plan plan = std::move(step.plan);
  require_target(options.fault, plan, options.layout.ranks());
  need_ = count_memory(device, options, step.module, plan, step.memory);
  module_ = std::move(step.module);
  if (ranks.world) need_.communicators = make_groups(plan);
  require_memory(device, options, need_);
  exchange_.wait_for_all();  // no rank takes memory before all have seen what is free
  stream_->reserve(need_.streams.lanes[static_cast<std::size_t>(Lane::compute)]);
  storage_ = std::make_unique<ModelStorage>(device, module_);
  parameters_ = std::make_unique<ModelParameters>(device, module_, *storage_, *stream_);
  train_ = prepare(module_, std::move(plan), need_.plan, made_from);
  train_->set_results(step_results());
  CountLabels count;
  if (options.per_token_loss) count = [this](const MicroBatch& batch) { return counted_on_all_ranks({&batch, 1}); };
  evaluator_ = std::make_unique<Evaluator>(
      options.batch, options.length, inputs_, *stream_, exchange_,
      [this](const EvaluationShape& shape) { return make_evaluation(shape); }, count);
  forget_updates();
  if (options.fault.rank == options.layout.rank().value) train_->inject(options.fault, ranks.world);
  if (ranks.parallel || options.layout.stage_count() > 1) {
    ExecutorOptions how = ranks.executor;
    how.side_by_side = ranks.parallel;
    executor_ = make_executor(*train_, device, *stream_, how, need_.streams);
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
  exchange_.wait_for_all();
  groups_->add(plan);
  exchange_.wait_for_all();
  const std::size_t after = device_.free_bytes();
  if (!device_.asynchronous() || after > before) return 0;  // a CPU's memory is not theirs alone
  return static_cast<std::int64_t>(before - after) / ranks.on_device;
}

std::unique_ptr<PreparedPlan> Session::prepare(const Module& module, Plan plan, const MemoryPlan& memory,
                                               const StepOptions& made_from) {
  if (groups_) groups_->add(plan);
  auto prepared =
      std::make_unique<PreparedPlan>(module, std::move(plan), memory, device_, *storage_, *stream_, groups_.get());
  check_plans_of_all_ranks(*prepared, made_from, exchange_);
  return prepared;
}

std::unique_ptr<EvaluationPlan> Session::make_evaluation(const EvaluationShape& shape) {
  auto made = std::make_unique<EvaluationPlan>();
  const StepOptions made_from = evaluation_step(options_, shape);
  StepPlan step = plan_step(made_from);
  made->module = std::move(step.module);
  made->plan = prepare(made->module, std::move(step.plan), step.memory, made_from);
  return made;
}

Evaluator& Session::evaluator() {
  flush_updates();
  return *evaluator_;
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

// Sets numbers that mean "not finite", so that the next step's carried updates do nothing.
void Session::forget_updates() {
  updates_left_ = false;
  if (!training_step(options_).plan.overlap_updates) return;
  train_->write(*stream_, module_.update_values, std::vector<double>(StepValues::count));
  if (executor_) executor_->nothing_carried();
}

bool Session::kept_by_failed_step() {
  if (options_.ranks.world || device_.asynchronous()) return false;
  const PreparedPlan::Changed changed = train_->changed();
  if (changed == PreparedPlan::Changed::carried) forget_updates();  // they are done
  return changed != PreparedPlan::Changed::some;
}

void Session::flush_updates() {
  if (!updates_left_) return;
  const std::vector<Node>& nodes = train_->plan().nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].carried) train_->run_node(NodeId(static_cast<std::int64_t>(i)), *stream_, true);
  forget_updates();
}

const ModelParameters& Session::parameters() {
  flush_updates();
  return *parameters_;
}

void Session::set_parameters(const ModelParameters::Source& source) {
  forget_updates();
  parameters_->set_weights(source);
  steps_ = 0;
}

void Session::initialise_parameters(std::uint64_t seed) {
  set_parameters([seed](const ParameterPart& part, HostTensor& tensor) { initialise(part, seed, tensor); });
}

std::vector<ValueId> Session::step_results() const {
  std::vector<ValueId> results{module_.loss};
  results.insert(results.end(), module_.mtp_losses.begin(), module_.mtp_losses.end());
  for (ValueId value : {module_.router_losses, module_.indexer_loss})
    if (value.valid()) results.push_back(value);
  if (options_.updates()) results.push_back(module_.update_values);
  return results;
}

std::int64_t Session::counted_on_all_ranks(std::span<const MicroBatch> batches) const {
  const std::int64_t own = counted_labels(batches);
  const std::vector<std::int64_t> of_ranks = exchange_.gather(std::span(&own, 1));
  std::int64_t all = 0;
  for (const RankId rank : options_.layout.members_of(options_.layout.data_ranks())) all += of_ranks[rank.index()];
  return all;
}

StepResult Session::step(std::span<const MicroBatch> batches, double learning_rate, double decay) {
  WEFT_CHECK(std::ssize(batches) == options_.plan.micro_batches, "{} batches for {} micro-batches", batches.size(),
             options_.plan.micro_batches);
  StepNumbers numbers{learning_rate, decay, steps_ + 1};
  if (options_.per_token_loss) numbers.counted_labels = counted_on_all_ranks(batches);
  train_->begin_step();
  inputs_.write(*train_, batches, numbers);
  run_training_plan();
  StepResult result;
  result.loss = train_->result(module_.loss)[0];
  for (ValueId loss : module_.mtp_losses)
    result.mtp_losses.push_back(train_->result(loss)[0] / inputs_.mtp_factor(module_));
  if (module_.router_losses.valid()) {
    result.layer_losses = train_->result(module_.router_losses);
    const auto layers = static_cast<double>(module_.expert_layers.size());
    result.router_losses.assign(router_loss_count, 0);
    for (std::size_t i = 0; i < result.layer_losses.size(); ++i)
      result.router_losses[i % router_loss_count] += result.layer_losses[i] / layers;
  }
  if (module_.indexer_loss.valid()) result.indexer_loss = train_->result(module_.indexer_loss)[0];
  if (!options_.updates()) return result;
  updates_left_ = options_.plan.overlap_updates;
  const std::vector<double> values = train_->result(module_.update_values);
  if (options_.optimizer.clip > 0) result.gradient_norm = values[StepValues::gradient_norm];
  result.finite = values[StepValues::finite] != 0;
  if (result.finite) ++steps_;
  return result;
}

StepResult Session::gradients(std::span<const MicroBatch> batches) {
  WEFT_CHECK(!options_.updates(), "this session trains");
  StepResult result = step(batches, 0, 0);
  double squares = 0;
  parameters_->each(Content::gradient, [&](const ParameterPart& part, const HostTensor& tensor) {
    each_number(part, tensor, [&](std::int64_t, double value) { squares += value * value; });
  });
  result.gradient_norm = std::sqrt(squares);
  return result;
}

}  // namespace weft
