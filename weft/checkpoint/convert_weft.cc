// To a checkpoint of Weft's: one folder, whatever number of ranks wrote what is read.
#include <cstring>

#include <nlohmann/json.hpp>

#include "weft/base/checksum.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/checkpoint/convert.h"
#include "weft/checkpoint/parameter_list.h"
#include "weft/checkpoint/run_checkpoint.h"

namespace weft {
namespace {

// Whole tensors, and their entries in the manifest.
class Tensors {
 public:
  // Checksums are there once the tensor has been filled.
  void add(std::string name, StoredType type, const Shape& shape, std::function<void(std::span<std::byte>)> fill) {
    ManifestTensor& described = described_[name];
    described = {type, shape, {{"", Box::whole(shape), 0}}};
    TensorToWrite tensor{std::move(name), type, shape, {}};
    const std::size_t bytes = bytes_of(tensor);
    tensor.fill = [bytes, box = &described.boxes[0], fill = std::move(fill)](std::byte* out) {
      fill({out, bytes});
      box->checksum = checksum_of(std::span<const std::byte>(out, bytes));
    };
    bytes_ += bytes;
    to_write_.push_back(std::move(tensor));
  }
  std::size_t size() const { return to_write_.size(); }
  std::size_t bytes() const { return bytes_; }

  // Files and tensors of the manifest, once all are written.
  void write(const std::filesystem::path& folder, Manifest& manifest, std::int64_t max_bytes,
             const std::function<void(std::size_t)>& written) {
    std::vector<std::vector<TensorToWrite>> shards = split_into_shards(std::move(to_write_), max_bytes);
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::string file = fmt::format("tensors-{:05}-of-{:05}.safetensors", i + 1, shards.size());
      for (const TensorToWrite& tensor : shards[i]) described_[tensor.name].boxes[0].file = file;
      WriteTarget target;
      target.written = written;
      write_safetensors(folder / file, std::move(shards[i]), target);
      manifest.files[file] = static_cast<std::int64_t>(std::filesystem::file_size(folder / file));
    }
    manifest.tensors = std::move(described_);
  }

 private:
  ManifestTensors described_;
  std::vector<TensorToWrite> to_write_;
  std::size_t bytes_ = 0;
};

}  // namespace

ConvertResult write_weft(const ModelSource& source, const ConvertOptions& options) {
  require_optimizer(source, options);
  const ModelDescription& description = source.description();
  const std::optional<HuggingFaceOrigin>& origin = description.hugging_face;
  ConvertResult result{origin ? origin->family : "", description.config.pattern,
                       origin ? origin->form.experts : ExpertsForm::none};
  result.tensors_in = source.tensors();
  Tensors tensors;
  for (const auto& [identity, shape, accumulate, trained] : parameters_of(description.config)) {
    result.parameters += shape.elements();
    const auto add = [&, &identity = identity, &shape = shape](Content content) {
      const std::optional<StoredType> type = source.type_of(content, identity);
      if (!type && content == Content::weight) throw UserError("there are no weights of {}", to_text(identity));
      if (!type) return;
      tensors.add(tensor_name(content, identity), *type, shape,
                  [&source, id = identity, content, shape, type = *type](std::span<std::byte> out) {
                    source.read(content, id, shape, type, out);
                    source.forget(content, id);
                  });
    };
    add(Content::weight);
    if (!options.optimizer) continue;
    for (const Content state : optimizer_states) add(state);
  }
  const std::vector<TensorEntry> others = source.other_tensors();
  for (const TensorEntry& other : others)
    tensors.add(std::string(other_tensor_prefix) + other.name, other.type, other.shape,
                [&other](std::span<std::byte> out) {
                  if (!out.empty()) std::memcpy(out.data(), other.bytes.data(), out.size());
                });
  result.tensors_out = tensors.size();
  result.bytes = tensors.bytes();

  Manifest manifest;
  manifest.model = to_json(description).dump();
  if (const std::optional<SavedRun> run = source.run()) {
    manifest.iteration = run->position.iteration;
    manifest.run = to_json(*run).dump();
  }
  const SideFiles side_files = source.side_files();
  for (const auto& [name, bytes] : side_files) manifest.side_files[name] = {std::ssize(bytes), checksum_of(bytes)};

  NewFolder folder(options.out);
  tensors.write(folder.path(), manifest, options.max_shard_bytes, progress_of(options, result.bytes));
  result.files = manifest.files.size();
  write_side_files(folder.path(), side_files);
  write_file_atomically(folder.path() / manifest_name, to_text(manifest));
  folder.commit();
  return result;
}

}  // namespace weft
