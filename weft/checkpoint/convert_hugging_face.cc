// To a Hugging Face folder.
#include <algorithm>
#include <cstring>

#include "weft/base/error.h"
#include "weft/checkpoint/convert.h"

namespace weft {
namespace {

StoredType stored_type(const ModelSource& source, const ParameterIdentity& identity) {
  const std::optional<StoredType> type = source.type_of(Content::weight, identity);
  if (!type) throw UserError("there are no weights of {}", to_text(identity));
  return *type;
}

// A tensor has one dtype, that of all its parameters.
StoredType type_for(const DiskTensor& tensor, const ModelSource& source) {
  const StoredType type = stored_type(source, tensor.parts[0].identity);
  for (const DiskPart& part : tensor.parts)
    if (const StoredType other = stored_type(source, part.identity); other != type)
      throw UserError(
          "'{}' would hold elements of {} and {}, and a tensor has one dtype; convert with --experts as-read",
          tensor.name, name_of(type), name_of(other));
  return type;
}

}  // namespace

HuggingFaceModel hugging_face_tensors(const ModelSource& source, std::optional<ExpertsForm> experts) {
  const ModelDescription& description = source.description();
  if (!description.hugging_face)
    throw UserError("the model does not come from a Hugging Face folder, so its family is not known");
  const HuggingFaceOrigin& origin = *description.hugging_face;
  HuggingFaceModel model = hugging_face_model(origin.family, description.config, origin.form);
  if (experts && *experts != model.form.experts) model = with_experts(model, *experts);
  for (DiskTensor& tensor : model.tensors) {
    const auto at = origin.types.find(tensor.name);
    tensor.type = at != origin.types.end() ? at->second : origin.type ? *origin.type : type_for(tensor, source);
  }
  return model;
}

std::optional<HuggingFaceOrigin> origin_with_types(const ModelSource& source) {
  if (!source.description().hugging_face) return std::nullopt;
  HuggingFaceOrigin origin = *source.description().hugging_face;
  const HuggingFaceModel model = hugging_face_tensors(source, {});
  std::map<StoredType, std::size_t> count;
  for (const DiskTensor& tensor : model.tensors) ++count[tensor.type];
  origin.type = std::max_element(count.begin(), count.end(), [](const auto& a, const auto& b) {
                  return a.second < b.second;
                })->first;
  origin.types.clear();
  for (const DiskTensor& tensor : model.tensors)
    if (tensor.type != *origin.type) origin.types[tensor.name] = tensor.type;
  return origin;
}

ConvertResult write_hugging_face(const ModelSource& source, const ConvertOptions& options) {
  const HuggingFaceModel model = hugging_face_tensors(source, options.experts);
  const std::vector<TensorEntry> others = source.other_tensors();
  const SideFiles side_files = source.side_files();

  std::map<ParameterIdentity, Shape> shapes;
  for (const DiskTensor& tensor : model.tensors)
    for (const DiskPart& part : tensor.parts) shapes[part.identity] = part.parameter;
  const ParameterSource parameters = [&](const ParameterIdentity& identity, StoredType type, std::span<std::byte> out) {
    source.read(Content::weight, identity, shapes.at(identity), type, out);
    source.forget(Content::weight, identity);
  };
  ConvertResult result{model.family, model.config.pattern, model.form.experts};
  result.tensors_in = source.tensors();
  std::vector<TensorToWrite> tensors;
  for (const DiskTensor& tensor : model.tensors) {
    tensors.push_back(tensor_to_write(tensor, tensor.type, parameters));
    if (!tensor.copy) result.parameters += tensor.shape.elements();
  }
  for (const TensorEntry& other : others)
    tensors.push_back({other.name, other.type, other.shape, [&other](std::byte* out) {
                         if (!other.bytes.empty()) std::memcpy(out, other.bytes.data(), other.bytes.size());
                       }});
  result.tensors_out = tensors.size();
  for (const TensorToWrite& tensor : tensors) result.bytes += bytes_of(tensor);

  NewFolder folder(options.out);
  result.files = write_shards(folder.path(), std::move(tensors),
                              {options.max_shard_bytes, progress_of(options, result.bytes), false});
  write_side_files(folder.path(), side_files);
  folder.commit();
  return result;
}

}  // namespace weft
