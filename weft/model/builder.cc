#include "weft/model/builder.h"

#include <cmath>

#include "weft/base/error.h"

namespace weft {

namespace {

// Sums of bytes over all tensors must not overflow. The largest tensors of today's models have 2^33 elements.
void require_size(const std::string& name, const Shape& shape) {
  constexpr double most = 1.0 * (std::int64_t{1} << 40);
  double elements = 1;
  for (int i = 0; i < shape.dims(); ++i) elements *= static_cast<double>(shape[i]);
  if (elements > most)
    throw UserError("{} would be {}, {:.3g} numbers, which no machine holds: a size of the model or batch is too large",
                    name, to_text(shape), elements);
}

}  // namespace

ModuleBuilder::ModuleBuilder(const ModelConfig& config, const ModuleOptions& options)
    : config_(config), options_(options) {
  module_.layout = options.layout;
  const auto ranks_of = [&](GroupId over) {
    return TensorRanks{options.layout.size_of(over), options.layout.position_in(over), over};
  };
  tensor_ranks_ = ranks_of(options.layout.tensor_ranks());
  expert_tensor_ranks_ = ranks_of(options.layout.expert_tensor_ranks());
  context_ranks_ = ContextRanks::of(options.layout);
  tensor_ranks_.sequence = options.sequence_parallel && tensor_ranks_.divide();
  // Every layer adds once to the residual stream; its variance must not grow with their number.
  const int layers = parse_pattern(config.pattern).physical_layers;
  residual_std_ = config.init_std / std::sqrt(std::max(1, layers));
}

GroupId ModuleBuilder::summed_over_data() const {
  const GroupId ranks = options_.layout.batch_ranks();
  return options_.layout.divides(ranks) ? ranks : GroupId{};
}

GroupId ModuleBuilder::summed_over_tokens() const {
  const GroupId ranks = options_.layout.stage_ranks();
  return options_.layout.divides(ranks) ? ranks : GroupId{};
}

void ModuleBuilder::enter(int depth, int physical, std::string layer, ItemPlace item) {
  place_ = {depth, physical, 0, std::move(layer), "", Section::layers, item};
}

ValueId ModuleBuilder::value(Value value) {
  require_size(value.name, value.shape);
  module_.values.push_back(std::move(value));
  return ValueId(std::ssize(module_.values) - 1);
}

ValueId ModuleBuilder::activation(std::string name, DType dtype, const Shape& shape) {
  return value({place_.layer + "." + name, ValueKind::activation, dtype, shape});
}

ValueId ModuleBuilder::scratch(std::string name, DType dtype, const Shape& shape) {
  return value({place_.layer + "." + name, ValueKind::scratch, dtype, shape});
}

ValueId ModuleBuilder::gradient_of(ValueId activation) {
  for (const auto& [of, gradient] : gradients_)
    if (of == activation) return gradient;
  const Value& v = module_.value(activation);
  const ValueId gradient = value({"d(" + v.name + ")", ValueKind::activation, v.dtype, v.shape});
  gradients_.emplace_back(activation, gradient);
  return gradient;
}

ValueId ModuleBuilder::constant(const std::string& name, const Shape& shape, std::function<void(double*)> fill) {
  for (const auto& [key, id] : constants_)
    if (key == name) return id;
  Value v{name, ValueKind::constant, accumulate(), shape};
  v.fill = std::move(fill);
  constants_.emplace_back(name, value(std::move(v)));
  return constants_.back().second;
}

ValueId ModuleBuilder::constant_of_ints(const std::string& name, const std::vector<std::int64_t>& numbers) {
  const ValueId made = constant(name, {std::ssize(numbers)}, [numbers](double* out) {
    for (const std::int64_t number : numbers) *out++ = static_cast<double>(number);
  });
  module_.values[made.index()].dtype = DType::i32;
  return made;
}

ContextTransfer ModuleBuilder::context_transfer() const {
  const std::vector<ContextTransfer>& all = options_.context_transfers;
  const auto layer = static_cast<std::size_t>(std::max(place_.physical, 0));
  return place_.depth > 0 || layer >= all.size() ? all.back() : all[layer];
}

ParameterPart ModuleBuilder::part(Role role, const Shape& shape, Init init, int expert) const {
  ParameterPart part;
  part.identity = {place_.depth, place_.physical, role, expert};
  part.shape = shape;
  part.box = Box::whole(shape);
  part.init = init;
  return part;
}

namespace {

ParameterPart divided(ParameterPart made, int dim, const TensorRanks& ranks) {
  const Shape shape = made.shape;
  const Range here = ranks.part_of(shape[dim]);
  made.box.begin[static_cast<std::size_t>(dim)] = here.first;
  Shape extent;
  for (int d = 0; d < shape.dims(); ++d) extent.append(d == dim ? here.count : shape[d]);
  made.box.extent = extent;
  made.tensor_dim = dim;
  return made;
}

}  // namespace

ParameterPart ModuleBuilder::tensor_part(Role role, const Shape& shape, int dim, Init init) const {
  return divided(part(role, shape, init), dim, tensor_ranks_);
}

ParameterPart ModuleBuilder::expert_part(Role role, const Shape& shape, int dim, Init init, int expert) const {
  return divided(part(role, shape, init, expert), dim, expert_tensor_ranks_);
}

ValueId ModuleBuilder::add_tensor(const std::string& name, const Shape& shape, DType dtype,
                                  std::vector<ParameterPart> parts) {
  ParameterTensor tensor;
  tensor.name = place_.layer + "." + name;
  tensor.shape = shape;
  tensor.parts = std::move(parts);
  require_size(tensor.name, shape);
  tensor.role = tensor.parts.front().identity.role;
  tensor.decays = tensor.parts.front().shape.dims() > 1;
  std::int64_t offset = 0;
  for (ParameterPart& part : tensor.parts) {
    part.place.offset = offset;
    offset += part.elements();
    tensor.parameters += part.shape.elements();
    tensor.expert |= part.identity.expert >= 0;
  }
  int tensor_dim = tensor.parts.front().tensor_dim;
  if (tensor.expert && tensor_dim >= 0) ++tensor_dim;  // the tensor's first dim counts experts
  tensor.placement = options_.layout.placement_of({.experts = tensor.expert, .tensor_dim = tensor_dim});
  const bool may_lack_rows = tensor_ranks_.divide() && tensor_dim == 0 && tensor.parts.size() == 1;
  WEFT_CHECK(offset == shape.elements() || (may_lack_rows && offset < shape.elements()),
             "the parts of {} hold {} of {} elements", tensor.name, offset, shape.elements());
  const TensorId id(std::ssize(module_.parameters));
  module_.parameter_values.push_back(value({tensor.name, ValueKind::parameter, dtype, shape, id}));
  module_.gradient_values.emplace_back();
  module_.parameters.push_back(std::move(tensor));
  return module_.parameter_values.back();
}

ParameterValues ModuleBuilder::parameter(const std::string& name, const Shape& shape,
                                         std::vector<ParameterPart> parts) {
  ParameterValues values;
  const bool matrix = parts.front().shape.dims() > 1;  // what is not is small
  values.value = add_tensor(name, shape, compute(), std::move(parts));
  const Value made = module_.value(values.value);
  const DType dtype = matrix ? options_.precision.matrix_gradient() : accumulate();
  values.gradient = value({"d(" + made.name + ")", ValueKind::parameter_gradient, dtype, shape, made.tensor});
  module_.gradient_values.back() = values.gradient;
  return values;
}

ValueId ModuleBuilder::frozen_parameter(const std::string& name, const Shape& shape, std::vector<ParameterPart> parts,
                                        std::optional<DType> dtype) {
  const ValueId made = add_tensor(name, shape, dtype.value_or(accumulate()), std::move(parts));
  module_.parameters.back().trained = false;
  module_.parameters.back().accumulate_dtype = !dtype;
  return made;
}

ParameterValues ModuleBuilder::precise_parameter(const std::string& name, const Shape& shape,
                                                 std::vector<ParameterPart> parts) {
  const ParameterValues made = parameter(name, shape, std::move(parts));
  keep_gradient_precise(made);
  tensor(made).accumulate_dtype = true;
  module_.values[made.value.index()].dtype = accumulate();
  return made;
}

void ModuleBuilder::keep_gradient_precise(ParameterValues values) {
  module_.values[values.gradient.index()].dtype = accumulate();
}

ParameterTensor& ModuleBuilder::tensor(ParameterValues values) {
  return module_.parameters[module_.value(values.value).tensor.index()];
}

ParameterValues ModuleBuilder::norm_weight(const std::string& name, Role role, std::int64_t width) {
  return parameter(name, {width},
                   {part(role, {width}, {Init::Kind::constant, config_.zero_centred_norms ? 0.0 : 1.0})});
}

ValueId ModuleBuilder::running(std::string name, DType dtype, const Shape& shape) {
  return value({place_.layer + "." + name, ValueKind::running, dtype, shape});
}

ValueId ModuleBuilder::before(ValueId running) {
  const Value of = module_.value(running);
  Value made{of.name + "_before", ValueKind::before, of.dtype, of.shape};
  made.running = running;
  made.initial = value({of.name + "_at_first", ValueKind::constant, of.dtype, of.shape});
  module_.values[made.initial.index()].fill = [n = of.shape.elements()](double* out) { std::fill(out, out + n, 0.0); };
  return value(std::move(made));
}

ValueId ModuleBuilder::router_losses() {
  if (!module_.router_losses.valid()) {
    const Shape shape{std::ssize(module_.expert_layers), router_loss_count};
    module_.router_losses = value({"router_losses", ValueKind::step, DType::f64, shape});
    module_.values[module_.router_losses.index()].read_by_host = true;
    module_.values[module_.router_losses.index()].summed_over = summed_over_tokens();
  }
  return module_.router_losses;
}

std::int64_t ModuleBuilder::router_row() const {
  const auto& layers = module_.expert_layers;
  const auto at = std::find_if(layers.begin(), layers.end(), [&](const ExpertLayer& layer) {
    return layer.depth == place_.depth && layer.physical == place_.physical;
  });
  WEFT_CHECK(at != layers.end(), "{} is not a layer of experts", place_.layer);
  return at - layers.begin();
}

ValueId ModuleBuilder::balance_parameter(ValueId parameter, double rate) {
  const Value of = module_.value(parameter);
  module_.parameters[of.tensor.index()].balance_rate = rate;
  const ValueId counts =
      value({"counts(" + of.name + ")", ValueKind::parameter_gradient, DType::f64, of.shape, of.tensor});
  module_.gradient_values[of.tensor.index()] = counts;
  return counts;
}

Piece& ModuleBuilder::piece(const std::string& name, Lane lane) {
  Piece piece;
  piece.place = place_;
  piece.place.piece = name;
  piece.place.unit = module_.units;
  piece.place.chunk = static_cast<int>(module_.chunks.size()) - 1;
  piece.lane = lane;
  module_.pieces.push_back(std::move(piece));
  return module_.pieces.back();
}

}  // namespace weft
