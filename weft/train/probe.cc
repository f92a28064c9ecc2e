#include "weft/train/probe.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/checkpoint/convert.h"
#include "weft/checkpoint/parameter_list.h"
#include "weft/model/logical_parameters.h"

namespace weft {

namespace {

// [B, S] of input ids or labels, as i32.
std::vector<std::int32_t> read_ids(const SafetensorsFile& file, const std::string& name, int dims, Shape& shape) {
  const TensorEntry& entry = file.at(name);
  if (entry.shape.dims() != dims)
    throw UserError("{}: {} has shape {}, expected {} dims", entry.file, name, to_text(entry.shape), dims);
  if (!is_convertible(entry.type, DType::i32))
    throw UserError("{}: {} is {}; token ids are integers (I32 or I64)", entry.file, name, name_of(entry.type));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(entry.shape.elements()));
  read_as(entry, DType::i32, ids.data());
  shape = entry.shape;
  return ids;
}

SessionOptions session_options(const ProbeOptions& o, const ModelConfig& config, std::int64_t batch,
                               std::int64_t length) {
  SessionOptions s;
  s.config = config;
  s.config.mtp_loss_factor = o.mtp_loss_factor;
  s.precision = o.precision;
  s.batch = batch;
  s.length = length;
  s.threads = o.threads;
  return s;
}

void load(Session& session, const ModelSource& source) {
  session.set_parameters(
      [&](const ParameterPart& part, HostTensor& tensor) { source.read(Content::weight, part, tensor); });
}

// The tensors of the model's Hugging Face folder; of a model that comes from none, one for every parameter.
std::vector<DiskTensor> tensors_of(const ModelSource& source) {
  if (source.description().hugging_face) return hugging_face_tensors(source).tensors;
  std::vector<DiskTensor> tensors;
  for (const ListedParameter& parameter : parameters_of(source.description().config))
    tensors.push_back(whole_tensor(to_text(parameter.identity), parameter.identity, parameter.shape));
  return tensors;
}

void write_results(Session& session, std::vector<DiskTensor> tensors, const ProbeOptions& options,
                   const MicroBatch& batch) {
  LogicalParameters gradients;
  session.parameters().each(Content::gradient, [&](const ParameterPart& part, const HostTensor& tensor) {
    WEFT_CHECK(gradients.add(part, tensor), "{} is there twice", to_text(part.identity));
  });
  // The rows of the embedding that pad the vocabulary are ours alone.
  const std::vector<double> padded = session.evaluator().batch_logits(batch);
  const auto rows = static_cast<std::size_t>(session.options().config.embedding_rows());
  const auto words = static_cast<std::size_t>(session.options().config.vocabulary);
  std::vector<double> logits;
  for (std::size_t t = 0; t * rows < padded.size(); ++t)
    logits.insert(logits.end(), padded.begin() + static_cast<std::ptrdiff_t>(t * rows),
                  padded.begin() + static_cast<std::ptrdiff_t>(t * rows + words));
  WriteOptions write;
  write.prefix = "grad.";
  write.type = options.precision.compute == DType::f64 ? StoredType::f64 : StoredType::f32;
  std::vector<TensorToWrite> extra;
  const Shape shape{batch.batch, batch.length, session.options().config.vocabulary};
  extra.push_back({"logits", *write.type, shape,
                   [&](std::byte* out) { store_doubles(logits.data(), *write.type, out, std::ssize(logits)); }});
  // Biases of the choice are not trained: they have no gradient there either.
  std::erase_if(tensors, [](const DiskTensor& t) { return t.parts[0].identity.role == Role::expert_bias; });
  write_tensors(
      options.out, tensors, write,
      [&](const ParameterIdentity& identity, StoredType type, std::span<std::byte> out) {
        if (!gradients.has(identity)) return std::fill(out.begin(), out.end(), std::byte{0});  // it is not trained
        const HostTensor& gradient = gradients.at(identity);
        store(gradient.dtype, gradient.bytes.data(), type, out.data(), gradient.elements());
      },
      std::move(extra));
}

}  // namespace

ProbeResult probe(Device& device, const ProbeOptions& options) {
  const std::unique_ptr<ModelSource> source = open_model(options.model);
  const SafetensorsFile file(options.tokens);
  Shape shape, label_shape;
  MicroBatch batch;
  batch.tokens = read_ids(file, "input_ids", 2, shape);
  batch.labels = read_ids(file, "labels", 2, label_shape);
  if (shape != label_shape)
    throw UserError("{}: input_ids {} and labels {} differ in shape", options.tokens.string(), to_text(shape),
                    to_text(label_shape));
  if (shape.elements() == 0)
    throw UserError("{}: input_ids {} holds no token", options.tokens.string(), to_text(shape));
  batch.batch = shape[0];
  batch.length = shape[1];
  SessionOptions s = session_options(options, source->description().config, shape[0], shape[1]);
  s.plan.kind = PlanKind::gradients;
  Session session(device, s);
  load(session, *source);
  const StepResult result = session.gradients(std::span(&batch, 1));
  if (!options.out.empty()) write_results(session, tensors_of(*source), options, batch);
  return {result.loss, result.gradient_norm.value(), result.mtp_losses};
}

TrajectoryResult probe_trajectory(Device& device, const ProbeOptions& options, const TrajectoryOptions& trajectory) {
  const std::unique_ptr<ModelSource> source = open_model(options.model);
  const SafetensorsFile file(options.tokens);
  Shape shape;
  const std::vector<std::int32_t> ids = read_ids(file, "trajectory.tokens", 3, shape);
  if (shape[2] < 2 || shape.elements() == 0)
    throw UserError("{}: trajectory.tokens {} must hold inputs and labels: [steps, batch, length + 1]",
                    options.tokens.string(), to_text(shape));
  SessionOptions s = session_options(options, source->description().config, shape[1], shape[2] - 1);
  s.optimizer = trajectory.optimizer;
  Session session(device, s);
  load(session, *source);
  TrajectoryResult result;
  const std::int32_t* next = ids.data();
  for (std::int64_t step = 0; step < shape[0]; ++step) {
    MicroBatch batch;
    batch.batch = shape[1];
    batch.length = shape[2] - 1;
    for (std::int64_t b = 0; b < shape[1]; ++b, next += shape[2]) {
      batch.tokens.insert(batch.tokens.end(), next, next + batch.length);
      batch.labels.insert(batch.labels.end(), next + 1, next + 1 + batch.length);
    }
    const StepResult r = session.step(std::span(&batch, 1), trajectory.learning_rate, trajectory.weight_decay);
    if (!r.finite) throw RunError("step {}: loss {} or the gradient is not finite", step, r.loss);
    result.losses.push_back(r.loss);
    if (r.gradient_norm) result.gradient_norms.push_back(*r.gradient_norm);
    if (!r.mtp_losses.empty()) result.mtp_losses.push_back(r.mtp_losses);
  }
  return result;
}

}  // namespace weft
