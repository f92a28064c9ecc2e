#include "weft/execute/prepared_plan.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/device/operations.h"
#include "weft/execute/dry_run.h"
#include "weft/execute/sum_of_squares.h"

namespace weft {

namespace {

class NodeRun : public Run {
 public:
  NodeRun(const PieceCode& code, std::span<const Tensor> bound, std::span<const BufferUse> uses,
          const Operations& operations, Stream& stream)
      : code_(code), bound_(bound), uses_(uses) {
    operations_ = &operations;
    stream_ = &stream;
  }
  Tensor operator[](ValueId value) const override { return bound_[index_of(value)]; }
  Store store(ValueId value) const override {
    const BufferUse& use = uses_[index_of(value)];
    WEFT_CHECK(use.access == Access::add, "the piece does not add to value {}", value.value);
    return use.contribution == 0 ? Store::write : Store::add;
  }

 private:
  std::size_t index_of(ValueId value) const {
    for (std::size_t i = 0; i < code_.uses.size(); ++i)
      if (code_.uses[i].value == value) return i;
    WEFT_CHECK(false, "a piece uses value {}, which it does not declare", value.value);
  }

  const PieceCode& code_;
  std::span<const Tensor> bound_;
  std::span<const BufferUse> uses_;
};

void require_operations(const Module& module, const Plan& plan, const Device& device) {
  const std::vector<std::string> missing = missing_operations(module, plan, device);
  if (!missing.empty())
    throw UserError("{} lacks operations that this model needs: {}. Use another `device`, or a model without them",
                    device.name(), join(missing, ", "));
}

}  // namespace

PreparedPlan::PreparedPlan(const Module& module, Plan plan, MemoryPlan memory, Device& device,
                           const ModelStorage& storage, Stream& stream, const RankGroups* groups)
    : module_(module), plan_(std::move(plan)), memory_(std::move(memory)), device_(device), groups_(groups) {
  WEFT_CHECK(groups || plan_.collectives.empty(), "a plan that communicates needs groups");
  require_operations(module, plan_, device);
  arena_ = device.allocate(static_cast<std::size_t>(memory_.arena));
  host_ = device.allocate_host(static_cast<std::size_t>(memory_.step_values_end));
  std::memset(host_->data(), 0, host_->bytes());
  const std::size_t values = plan_.values.size();
  lookup_.resize((static_cast<std::size_t>(plan_.micro_batches) + 1) * values);
  counts_.resize(static_cast<std::size_t>(memory_.host) / sizeof(std::int64_t));
  std::vector<Tensor>& tensors = tensors_;
  for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
    const Buffer& buffer = plan_.buffers[i];
    const ValueInfo& value = plan_.values[buffer.value.index()];
    if (buffer.instance == 0)
      lookup_[static_cast<std::size_t>(buffer.micro_batch + 1) * values + buffer.value.index()] =
          BufferId(static_cast<std::int64_t>(i));
    switch (value.storage) {
      case StorageClass::weight:
        tensors.push_back(storage.weight(value.tensor));
        break;
      case StorageClass::gradient:
        tensors.push_back(storage.gradient(value.tensor));
        break;
      case StorageClass::state:
        tensors.push_back(storage.state(buffer.value));
        break;
      case StorageClass::host:
        tensors.emplace_back(reinterpret_cast<std::byte*>(counts_.data()) + memory_.host_offsets[i], value.dtype,
                             value.shape);
        break;
      default:
        tensors.emplace_back(arena_->data() + memory_.offset[i], value.dtype, value.shape);
        break;
    }
    if (value.part > 0) tensors.back().shape = {module.shard_of(value.tensor, value.part)->here};
  }
  reserve_counts();
  find_changes();
  bound_.reserve(plan_.uses.size());
  for (const BufferUse& use : plan_.uses) bound_.push_back(tensors[use.buffer.index()]);

  for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
    const ValueId id = plan_.buffers[i].value;
    if (plan_.values[id.index()].storage != StorageClass::constant) continue;
    std::vector<double> numbers(static_cast<std::size_t>(tensors[i].shape.elements()));
    module.value(id).fill(numbers.data());
    const std::vector<std::byte> bytes = pack(numbers, tensors[i].dtype);
    device.copy_in(stream, tensors[i].data, bytes.data(), bytes.size());
    stream.synchronize();
  }
}

void PreparedPlan::find_changes() {
  changes_.assign(plan_.nodes.size(), Change::none);
  for (std::size_t i = 0; i < plan_.nodes.size(); ++i) {
    const Node& node = plan_.nodes[i];
    for (const BufferUse& use : plan_.uses_of(node)) {
      const StorageClass storage = plan_.value_of(use.buffer).storage;
      if (use.access != Access::read && (storage == StorageClass::weight || storage == StorageClass::state))
        changes_[i] = node.carried ? Change::carried : Change::own;
    }
    carried_ += changes_[i] == Change::carried;
  }
}

void PreparedPlan::begin_step() {
  ++step_;
  own_begun_ = carried_begun_ = carried_done_ = 0;
}

PreparedPlan::Changed PreparedPlan::changed() const {
  if (own_begun_ > 0) return Changed::some;
  if (carried_begun_ == 0) return Changed::nothing;
  return carried_done_ == carried_ ? Changed::carried : Changed::some;
}

// Reserves memory for the counts of exchanges, by lane, so that a step allocates nothing.
void PreparedPlan::reserve_counts() {
  std::array<std::size_t, lane_count> copied{}, elements{};
  for (const Node& node : plan_.nodes) {
    const auto lane = static_cast<std::size_t>(node.lane);
    std::size_t bytes = 0;
    if (node.kind == NodeKind::wait_counts)
      for (const BufferUse& use : plan_.uses_of(node))
        if (use.access == Access::read) bytes += tensor_of(use.buffer).bytes();
    copied[lane] = std::max(copied[lane], bytes);
    transfers_[lane].reserve(static_cast<std::size_t>(node.collectives));
    for (const NodeCollective& c : plan_.collectives_of(node)) {
      if (c.kind != CollectiveKind::all_to_all) continue;
      WEFT_CHECK(c.send_counts.valid() == c.host_send_counts.valid(),
                 "the communicators need the counts of {} on the host", plan_.name_of(c.send));
      elements[lane] = std::max(elements[lane], 2 * static_cast<std::size_t>(groups_->layout().size_of(c.group)));
    }
  }
  std::size_t bytes = 0;
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    element_counts_[lane].resize(elements[lane]);
    bytes += copied[lane];
  }
  counts_memory_ = device_.allocate_host(bytes);
  std::byte* next = counts_memory_->data();
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    copied_counts_[lane] = std::span(next, copied[lane]);
    next += copied[lane];
  }
}

void PreparedPlan::run_node(NodeId id, Stream& stream, bool wait) const {
  const auto place = [&] { return fmt::format("node {}, {}", id.value, plan_.name_of(plan_.nodes[id.index()])); };
  try {
    run(id, stream);
    if (wait) this->wait(stream);
  } catch (const PeerError& e) {
    if (!e.is_lost()) throw;  // that rank has named its own node
    throw e.noticed_at(place());
  } catch (const std::exception& e) {
    throw RunError("{}: {}", place(), e.what());
  }
}

void PreparedPlan::run(NodeId id, Stream& stream) const {
  const Node& node = plan_.nodes[id.index()];
  if (fault_.strikes(id, step_) && !struck_.exchange(true)) fault_.strike(world_);
  const Change change = changes_[id.index()];
  if (change == Change::own) ++own_begun_;
  if (change == Change::carried) ++carried_begun_;
  const auto first = static_cast<std::size_t>(node.first_use), count = static_cast<std::size_t>(node.uses);
  std::int64_t end = 0;
  for (const BufferUse& use : plan_.uses_of(node))
    if (const std::int64_t offset = memory_.offset[use.buffer.index()]; offset >= 0)
      end = std::max(end, offset + plan_.value_of(use.buffer).bytes);
  for (std::int64_t seen = high_water_.load(); end > seen && !high_water_.compare_exchange_weak(seen, end);) {
  }
  switch (node.kind) {
    case NodeKind::compute: {
      const PieceCode& code = module_.piece(node.piece).code(node.phase, node.part);
      code.run(
          NodeRun(code, std::span(bound_).subspan(first, count), plan_.uses_of(node), device_.operations(), stream));
      break;
    }
    case NodeKind::communicate:
      communicate(node, stream, fault_.strikes(id, step_));
      break;
    case NodeKind::wait_counts:
      wait_for_counts(node, stream);
      break;
    case NodeKind::sum_of_squares:
      sum_of_squares(plan_, node, device_.operations(), stream, [this](BufferId buffer) { return tensor_of(buffer); });
      break;
    case NodeKind::accumulate:
      accumulate(node, stream);
      break;
    case NodeKind::release:
      break;  // the memory plan reuses the memory
  }
  if (change == Change::carried) ++carried_done_;
}

Tensor PreparedPlan::room_of(BufferId buffer) const {
  const Tensor tensor = tensor_of(buffer);
  return Tensor(tensor.data, tensor.dtype, {elements_of(plan_.value_of(buffer))});
}

void PreparedPlan::accumulate(const Node& node, Stream& stream) const {
  const auto uses = plan_.uses_of(node);
  for (std::size_t i = 0; i + 1 < uses.size(); i += 2) {
    const Tensor sum = tensor_of(uses[i].buffer), kept = tensor_of(uses[i + 1].buffer);
    if (sum.shape.elements() == 0) continue;
    if (uses[i + 1].contribution == 0)
      device_.operations().cast(stream, {sum, kept});
    else
      device_.operations().add(stream, {kept, sum, kept});
  }
}

// Copies counts, i32 [peers, n], to the host and sums them per peer: the first half of the uses into the second half.
void PreparedPlan::wait_for_counts(const Node& node, Stream& stream) const {
  const auto uses = plan_.uses_of(node);
  const std::size_t half = uses.size() / 2;
  std::byte* to = copied_counts(node.lane).data();
  for (std::size_t i = 0; i < half; ++i) {
    const Tensor counts = tensor_of(uses[i].buffer);
    device_.copy_out(stream, to, counts.data, counts.bytes());
    to += counts.bytes();
  }
  wait(stream);
  const auto* rows = reinterpret_cast<const std::int32_t*>(copied_counts(node.lane).data());
  for (std::size_t i = 0; i < half; ++i) {
    const Tensor sums = tensor_of(uses[half + i].buffer);
    const std::int64_t peers = sums.shape.elements(), each = tensor_of(uses[i].buffer).shape.elements() / peers;
    auto* const out = reinterpret_cast<std::int64_t*>(sums.data);
    for (std::int64_t p = 0; p < peers; ++p, rows += each) out[p] = std::accumulate(rows, rows + each, std::int64_t{0});
  }
}

std::span<std::byte> PreparedPlan::copied_counts(Lane lane) const {
  return copied_counts_[static_cast<std::size_t>(lane)];
}

void PreparedPlan::communicate(const Node& node, Stream& stream, bool wrong_counts) const {
  const auto collectives = plan_.collectives_of(node);
  for (std::size_t i = 0; i < collectives.size(); ++i) {
    const NodeCollective& c = collectives[i];
    Communicator& comm = groups_->get(node, c);
    const Tensor send = c.send.valid() ? tensor_of(c.send) : Tensor{};
    const Tensor receive = c.receive.valid() ? tensor_of(c.receive) : Tensor{};
    switch (c.kind) {
      case CollectiveKind::all_to_all:
        exchange(comm, node.lane, c, stream, wrong_counts);
        break;
      case CollectiveKind::all_gather:
        comm.all_gather(stream, room_of(c.send), room_of(c.receive));
        break;
      case CollectiveKind::reduce_scatter:
        comm.reduce_scatter(stream, room_of(c.send), room_of(c.receive), Reduction::sum);
        break;
      case CollectiveKind::all_reduce: {
        const auto part = [&](const Tensor& all) {
          return all.slice_rows(c.first_row, (c.end_row > 0 ? c.end_row : all.rows()) - c.first_row);
        };
        comm.all_reduce(stream, part(send), part(receive), Reduction::sum);
        break;
      }
      case CollectiveKind::broadcast:
        comm.broadcast(stream, receive, c.peer);
        break;
      case CollectiveKind::send:
      case CollectiveKind::receive: {
        // Consecutive transfers go together, so that two ranks may send to each other.
        std::vector<Transfer>& transfers = transfers_[static_cast<std::size_t>(node.lane)];
        const bool sends = c.kind == CollectiveKind::send;
        transfers.push_back(
            {sends ? Transfer::Direction::send : Transfer::Direction::receive, c.peer, sends ? send : receive});
        if (i + 1 < collectives.size() && collectives[i + 1].group == c.group && is_transfer(collectives[i + 1].kind))
          break;
        comm.transfer(stream, transfers);
        transfers.clear();
        break;
      }
      case CollectiveKind::to_next:
      case CollectiveKind::to_previous: {
        const int ahead = c.kind == CollectiveKind::to_next ? 1 : comm.size() - 1;
        const Transfer both[] = {
            {Transfer::Direction::send, (comm.rank() + ahead) % comm.size(), room_of(c.send)},
            {Transfer::Direction::receive, (comm.rank() + comm.size() - ahead) % comm.size(), room_of(c.receive)}};
        comm.transfer(stream, both);
        break;
      }
      case CollectiveKind::barrier:
        comm.barrier(stream);
        break;
    }
  }
}

// Elements to and from each peer: equal parts, or the row counts that the host has waited for.
void PreparedPlan::exchange(Communicator& comm, Lane lane, const NodeCollective& c, Stream& stream,
                            bool wrong_counts) const {
  const Tensor send = tensor_of(c.send), receive = tensor_of(c.receive);
  const auto peers = static_cast<std::size_t>(comm.size());
  const std::span<std::int64_t> all = element_counts_[static_cast<std::size_t>(lane)];
  const std::span<std::int64_t> sent = all.first(peers), received = all.subspan(peers, peers);
  const auto count = [&](std::span<std::int64_t> elements, BufferId rows, const Tensor& data) {
    const auto* known = rows.valid() ? reinterpret_cast<const std::int64_t*>(tensor_of(rows).data) : nullptr;
    for (std::size_t p = 0; p < peers; ++p)
      elements[p] = known ? known[p] * data.columns() : data.shape.elements() / comm.size();
  };
  count(sent, c.host_send_counts, send);
  count(received, c.host_receive_counts, receive);
  if (wrong_counts)
    for (std::int64_t& elements : received) elements -= elements > 0 ? 1 : 0;
  comm.all_to_all(stream, send, sent, receive, received);
}

bool PreparedPlan::uses(ValueId value, int micro_batch) const {
  return value.valid() &&
         lookup_[static_cast<std::size_t>(micro_batch + 1) * plan_.values.size() + value.index()].valid();
}

BufferId PreparedPlan::buffer(ValueId value, int micro_batch) const {
  const BufferId id = lookup_[static_cast<std::size_t>(micro_batch + 1) * plan_.values.size() + value.index()];
  WEFT_CHECK(id.valid(), "the plan does not use {}@{}", plan_.values[value.index()].name, micro_batch);
  return id;
}

Tensor PreparedPlan::tensor(ValueId value, int micro_batch) const {
  const BufferId id = buffer(value, micro_batch);
  const ValueInfo& info = plan_.values[value.index()];
  return Tensor(arena_->data() + memory_.offset[id.index()], info.dtype, info.shape);
}

template <class T>
std::span<T> PreparedPlan::input(ValueId value, int micro_batch, DType dtype) const {
  const ValueInfo& info = plan_.values[value.index()];
  const std::int64_t offset = memory_.offset[buffer(value, micro_batch).index()];
  WEFT_CHECK(offset >= 0 && offset < memory_.inputs_end, "the host does not provide {}", info.name);
  WEFT_CHECK(info.dtype == dtype, "{} is {}", info.name, name_of(info.dtype));
  return {reinterpret_cast<T*>(host_->data() + offset), static_cast<std::size_t>(info.shape.elements())};
}

std::span<std::int32_t> PreparedPlan::input_ints(ValueId value, int micro_batch) const {
  return input<std::int32_t>(value, micro_batch, DType::i32);
}

std::span<double> PreparedPlan::input_doubles(ValueId value, int micro_batch) const {
  return input<double>(value, micro_batch, DType::f64);
}

void PreparedPlan::queue_inputs(Stream& stream) const {
  device_.copy_in(stream, arena_->data(), host_->data(), static_cast<std::size_t>(memory_.inputs_end));
}

void PreparedPlan::write(Stream& stream, ValueId value, std::span<const double> values) const {
  const Tensor to = tensor(value);
  WEFT_CHECK(to.dtype == DType::f64 && to.bytes() == values.size_bytes(), "{} values for {}", values.size(),
             to_text(to.shape));
  device_.copy_in(stream, to.data, values.data(), to.bytes());
  stream.synchronize();
}

std::vector<double> PreparedPlan::read(Stream& stream, ValueId value, int micro_batch) const {
  const Tensor from = tensor(value, micro_batch);
  std::vector<std::byte> bytes(from.bytes());
  device_.copy_out(stream, bytes.data(), from.data, bytes.size());
  stream.synchronize();
  return unpack(bytes, from.dtype);
}

std::byte* PreparedPlan::result_memory(ValueId value) const {
  const std::int64_t offset = memory_.offset[buffer(value, -1).index()];
  WEFT_CHECK(offset >= memory_.inputs_end && offset < memory_.step_values_end, "{} is not a result of a step",
             plan_.values[value.index()].name);
  return host_->data() + offset;
}

void PreparedPlan::queue_results(Stream& stream) const {
  for (ValueId value : results_) {
    const Tensor from = tensor(value);
    device_.copy_out(stream, result_memory(value), from.data, from.bytes());
  }
}

std::vector<double> PreparedPlan::result(ValueId value) const {
  WEFT_CHECK(std::find(results_.begin(), results_.end(), value) != results_.end(), "{} is not copied to the host",
             plan_.values[value.index()].name);
  const Tensor from = tensor(value);
  return unpack(std::span(result_memory(value), from.bytes()), from.dtype);
}

void run_to_the_end(Stream& stream, const std::function<void()>& queue) {
  try {
    queue();
  } catch (...) {
    const std::exception_ptr why = std::current_exception();
    try {
      stream.synchronize();
    } catch (...) {  // a broken device runs nothing anyway
    }
    std::rethrow_exception(why);
  }
  stream.synchronize();
}

void run_serially(const PreparedPlan& plan, Stream& stream) {
  run_to_the_end(stream, [&] {
    plan.queue_inputs(stream);
    for (std::size_t i = 0; i < plan.plan().nodes.size(); ++i)
      plan.run_node(NodeId(static_cast<std::int64_t>(i)), stream, true);
    plan.queue_results(stream);
  });
}

}  // namespace weft
