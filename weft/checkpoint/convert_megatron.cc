// To a checkpoint of Megatron's form torch_dist.
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/checkpoint/convert.h"
#include "weft/checkpoint/megatron/megatron_args.h"
#include "weft/checkpoint/megatron/megatron_chunks.h"
#include "weft/checkpoint/megatron/megatron_keys.h"
#include "weft/checkpoint/megatron/megatron_source.h"
#include "weft/checkpoint/megatron/shared_state.h"
#include "weft/checkpoint/parameter_list.h"
#include "weft/checkpoint/torch_dist/torch_dist_writer.h"
#include "weft/checkpoint/torch_dist/torch_item.h"

namespace weft {
namespace {

// The type that holds every value of both.
StoredType wider(StoredType a, StoredType b) {
  if (a == b) return a;
  if (a == StoredType::f64 || b == StoredType::f64) return StoredType::f64;
  return StoredType::f32;  // also for BF16 with F16: neither holds the other
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directory(folder, error);
  if (error) throw RunError("cannot make the folder {}: {}", folder.string(), error.message());
}

class MegatronWriter {
 public:
  MegatronWriter(const ModelSource& source, const ConvertOptions& options)
      : source_(source), options_(options), config_(source.description().config) {
    for (const ListedParameter& parameter : parameters_of(config_)) parameters_[parameter.identity] = parameter;
    form_ = options.megatron_stacked_layers ? stacked_megatron_form(config_)
            : options.megatron_transformer  ? transformer_megatron_form(config_)
                                            : megatron_form(config_);
    tensors_ = megatron_tensors(config_, form_);
    require_optimizer(source, options);
    require_no_momentum();
    for (const DiskTensor& tensor : tensors_) optimizer_ = optimizer_ || is_trained(tensor);
    // A run in bf16 goes on from the float masters; its model's tensors are theirs, rounded. Without the optimizer's state
    // there are no masters in Megatron's form, and the model's tensors keep all bits.
    rounded_ = optimizer_ && source.description().compute == DType::bf16;
  }

  ConvertResult write() {
    const std::optional<HuggingFaceOrigin>& origin = source_.description().hugging_face;
    ConvertResult result{origin ? origin->family : "", config_.pattern,
                         origin ? origin->form.experts : ExpertsForm::none};
    result.tensors_in = source_.tensors();
    for (const auto& [identity, parameter] : parameters_) result.parameters += parameter.shape.elements();
    plan();
    for (const Planned& planned : planned_) result.bytes += bytes_of(planned.tensor->shape, planned.type).value();

    const std::optional<SavedRun> run = source_.run();
    const std::string name = run ? fmt::format("iter_{:07}", run->position.iteration) : "release";
    NewFolder folder(options_.out);
    make_folder(folder.path() / name);
    TorchDistWriterOptions writing;
    writing.max_file_bytes = static_cast<std::uint64_t>(options_.max_shard_bytes);
    writing.written = progress_of(options_, result.bytes);
    TorchDistWriter writer(folder.path() / name, writing);
    for (const Planned& planned : planned_) write_tensor(writer, planned);
    writer.write_shared_state(state(run));
    if (const SideFiles files = source_.side_files(); !files.empty()) {
      const std::filesystem::path side = folder.path() / name / megatron_side_folder;
      make_folder(side);
      write_side_files(side, files);
    }
    const TorchDistWriter::Written written = writer.finish();
    result.tensors_out = written.tensors;
    result.files = written.files;
    write_file_atomically(folder.path() / "latest_checkpointed_iteration.txt",
                          run ? fmt::format("{}", run->position.iteration) : name);
    folder.commit();
    return result;
  }

 private:
  struct Planned {
    std::string name;
    const DiskTensor* tensor;
    Content content;
    StoredType type;
  };

  void require_no_momentum() const {
    if (!options_.optimizer) return;
    for (const auto& [identity, parameter] : parameters_)
      if (source_.type_of(Content::momentum, identity))
        throw UserError(
            "the optimizer's state is that of --optimizer sgd (the momentum of {}), and Weft writes only that of adam "
            "into "
            "Megatron's checkpoints; take the weights alone with --no-load-optim",
            to_text(identity));
  }

  // The type that holds all its parameters; nothing: not all of them are there.
  std::optional<StoredType> type_of(const DiskTensor& tensor, Content content) const {
    std::optional<StoredType> type;
    for (const DiskPart& part : tensor.parts) {
      const std::optional<StoredType> found = source_.type_of(content, part.identity);
      if (!found) return std::nullopt;
      type = type ? wider(*type, *found) : *found;
    }
    return type;
  }

  // Whether its state is written: what the optimizer has no moments of, it does not train.
  bool is_trained(const DiskTensor& tensor) const {
    return options_.optimizer && type_of(tensor, Content::first_moment) && type_of(tensor, Content::second_moment);
  }

  // The model's tensor of a run in bf16, but for those that it computes with in float, and those that have no master.
  StoredType model_type(const DiskTensor& tensor, StoredType stored) const {
    if (!rounded_ || stored != StoredType::f32 || !is_trained(tensor)) return stored;
    for (const DiskPart& part : tensor.parts)
      if (parameters_.at(part.identity).accumulate_dtype) return stored;
    return StoredType::bf16;
  }

  void plan() {
    const auto state_name = [](std::string_view kind, const std::string& key) {
      return fmt::format("{}{}.{}", state_prefix, kind, key);
    };
    for (const DiskTensor& tensor : tensors_) {
      const std::optional<StoredType> type = type_of(tensor, Content::weight);
      if (!type) throw UserError("there are no weights for '{}'", tensor.name);
      planned_.push_back({tensor.name, &tensor, Content::weight, model_type(tensor, *type)});
    }
    if (!optimizer_) return;
    for (const DiskTensor& tensor : tensors_) {
      if (!is_trained(tensor)) continue;
      for (const auto& [kind, content] : {std::pair{first_moment_state_name, Content::first_moment},
                                          {second_moment_state_name, Content::second_moment},
                                          {master_state_name, Content::weight}})
        planned_.push_back({state_name(kind, tensor.name), &tensor, content, type_of(tensor, content).value()});
    }
  }

  void write_tensor(TorchDistWriter& writer, const Planned& planned) const {
    const ParameterSource read = [&](const ParameterIdentity& identity, StoredType type, std::span<std::byte> out) {
      source_.read(planned.content, identity, parameters_.at(identity).shape, type, out);
      source_.forget(planned.content, identity);
    };
    ShardedTensorToWrite tensor{planned.name, planned.type, planned.tensor->shape, {}};
    for (const MegatronChunk& chunk : megatron_chunks(*planned.tensor)) {
      // One that all experts share would come in slices; a chunk is of one expert.
      const TensorToWrite part = tensor_to_write(chunk.tensor, planned.type, read);
      tensor.chunks.push_back({chunk.box, [part](std::byte* out) {
                                 if (part.slices == 0) return part.fill(out);
                                 const std::size_t bytes = weft::bytes_of(part) / static_cast<std::size_t>(part.slices);
                                 for (std::int64_t i = 0; i < part.slices; ++i)
                                   part.fill_slice(i, out + static_cast<std::size_t>(i) * bytes);
                               }});
    }
    writer.write(tensor);
  }

  PythonValue state(const std::optional<SavedRun>& run) const {
    SharedState state;
    state.model_args = megatron_model_args(config_, form_.transformer);
    if (run) {
      state.flags = parse_json(run->arguments, "the run's flags");
      state.position = run->position;
    }
    state.bf16 = planned_.front().type == StoredType::bf16;
    state.optimizer = optimizer_;
    ModelDescription description = source_.description();
    description.hugging_face = origin_with_types(source_);
    state.description = to_json(description);
    return shared_state(state);
  }

  const ModelSource& source_;
  const ConvertOptions& options_;
  const ModelConfig& config_;
  std::map<ParameterIdentity, ListedParameter> parameters_;
  MegatronForm form_;
  std::vector<DiskTensor> tensors_;
  std::vector<Planned> planned_;
  bool optimizer_ = false, rounded_ = false;
};

}  // namespace

ConvertResult write_megatron(const ModelSource& source, const ConvertOptions& options) {
  return MegatronWriter(source, options).write();
}

}  // namespace weft
