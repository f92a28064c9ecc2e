#include "weft/execute/prepared_plan.h"

#include <cstring>

#include "weft/base/error.h"

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
    WEFT_CHECK(use.access == Access::add, "value {} is not added to here", value.value);
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

}  // namespace

PreparedPlan::PreparedPlan(const Module& module, Plan plan, Device& device, const ModelStorage& storage, Stream& stream)
    : module_(module), plan_(std::move(plan)), memory_(plan_memory(plan_)), device_(device) {
  arena_ = device.allocate(static_cast<std::size_t>(memory_.arena));
  const std::size_t values = plan_.values.size();
  lookup_.resize((static_cast<std::size_t>(plan_.micro_batches) + 1) * values);
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
    const Buffer& buffer = plan_.buffers[i];
    const ValueInfo& value = plan_.values[buffer.value.index()];
    lookup_[static_cast<std::size_t>(buffer.micro_batch + 1) * values + buffer.value.index()] =
        BufferId(static_cast<std::int64_t>(i));
    switch (value.storage) {
      case Storage::weight:
        tensors.push_back(storage.weight(value.tensor));
        break;
      case Storage::gradient:
        tensors.push_back(storage.gradient(value.tensor));
        break;
      case Storage::state:
        tensors.push_back(storage.state(buffer.value));
        break;
      default:
        tensors.emplace_back(arena_->data() + memory_.offset[i], value.dtype, value.shape);
        break;
    }
  }
  bound_.reserve(plan_.uses.size());
  for (const BufferUse& use : plan_.uses) bound_.push_back(tensors[use.buffer.index()]);

  for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
    const ValueId id = plan_.buffers[i].value;
    if (plan_.values[id.index()].storage != Storage::constant) continue;
    std::vector<double> numbers(static_cast<std::size_t>(tensors[i].shape.elements()));
    module.value(id).fill(numbers.data());
    const std::vector<std::byte> bytes = pack(numbers, tensors[i].dtype);
    device.copy_in(stream, tensors[i].data, bytes.data(), bytes.size());
    stream.synchronize();
  }
}

const PieceCode& PreparedPlan::code_of(const Node& node) const {
  const std::size_t i = node.piece.index(), pieces = module_.pieces.size();
  return (i < pieces ? module_.pieces[i] : module_.updates[i - pieces]).code(node.phase);
}

void PreparedPlan::run_node(NodeId id, Stream& stream) const {
  const Node& node = plan_.nodes[id.index()];
  const PieceCode& code = code_of(node);
  const auto first = static_cast<std::size_t>(node.first_use), count = static_cast<std::size_t>(node.uses);
  for (const BufferUse& use : plan_.uses_of(node))
    if (const std::int64_t offset = memory_.offset[use.buffer.index()]; offset >= 0)
      high_water_ = std::max(high_water_, offset + plan_.value_of(use.buffer).bytes);
  code.run(NodeRun(code, std::span(bound_).subspan(first, count), plan_.uses_of(node), device_.operations(), stream));
}

Tensor PreparedPlan::tensor(ValueId value, int micro_batch) const {
  const BufferId id = lookup_[static_cast<std::size_t>(micro_batch + 1) * plan_.values.size() + value.index()];
  WEFT_CHECK(id.valid(), "the plan does not use {}@{}", plan_.values[value.index()].name, micro_batch);
  const ValueInfo& info = plan_.values[value.index()];
  return Tensor(arena_->data() + memory_.offset[id.index()], info.dtype, info.shape);
}

void PreparedPlan::write_ints(Stream& stream, ValueId value, int micro_batch,
                              std::span<const std::int32_t> values) const {
  const Tensor to = tensor(value, micro_batch);
  WEFT_CHECK(to.dtype == DType::i32 && to.shape.elements() == std::ssize(values), "{} values for {}", values.size(),
             to_text(to.shape));
  device_.copy_in(stream, to.data, values.data(), to.bytes());
  stream.synchronize();
}

void PreparedPlan::write_doubles(Stream& stream, ValueId value, std::span<const double> values) const {
  const Tensor to = tensor(value);
  WEFT_CHECK(to.dtype == DType::f64 && to.shape.elements() == std::ssize(values), "{} values for {}", values.size(),
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

void run_serially(const PreparedPlan& plan, Stream& stream) {
  for (std::size_t i = 0; i < plan.plan().nodes.size(); ++i)
    plan.run_node(NodeId(static_cast<std::int64_t>(i)), stream);
  stream.synchronize();
}

}  // namespace weft
