// To a Hugging Face folder.
#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/checkpoint/convert.h"
#include "weft/checkpoint/hf_shape.h"
#include "weft/checkpoint/parameter_list.h"

namespace weft {
namespace {

constexpr const char* config_name = "config.json";

StoredType most_common(const std::map<StoredType, std::size_t>& count) {
  return std::max_element(count.begin(), count.end(), [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

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

StoredType type_there(const HuggingFaceOrigin& origin, const DiskTensor& tensor, const ModelSource& source) {
  const auto at = origin.types.find(tensor.name);
  return at != origin.types.end() ? at->second : origin.type ? *origin.type : type_for(tensor, source);
}

StoredType most_common_type(const ModelSource& source) {
  std::map<StoredType, std::size_t> count;
  for (const ListedParameter& parameter : parameters_of(source.description().config))
    ++count[stored_type(source, parameter.identity)];
  return most_common(count);
}

void set_experts(HuggingFaceModel& model, const HuggingFaceOptions& options) {
  if (options.experts && *options.experts != model.form.experts) model = with_experts(model, *options.experts);
}

// transformers keeps the bias of the choice in float.
void set_types(HuggingFaceModel& model, StoredType type) {
  for (DiskTensor& tensor : model.tensors) {
    const bool wide = tensor.parts[0].identity.role == Role::expert_bias && type != StoredType::f64;
    tensor.type = wide ? StoredType::f32 : type;
  }
}

std::string dtype_there(StoredType type) {
  switch (type) {
    case StoredType::bf16:
      return "bfloat16";
    case StoredType::f16:
      return "float16";
    case StoredType::f64:
      return "float64";
    default:
      return "float32";
  }
}

// Its name in config.json, under torch_dtype, or under dtype as transformers 5 writes it.
void set_dtype(SideFiles& files, StoredType type) {
  for (auto& [name, bytes] : files) {
    if (name != config_name) continue;
    Json config = parse_json(bytes, config_name);
    const char* const key = config.contains("dtype") ? "dtype" : "torch_dtype";
    if (config.contains(key) && config[key] == dtype_there(type)) return;
    config[key] = dtype_there(type);
    bytes = config.dump(2) + "\n";
  }
}

}  // namespace

HuggingFaceModel hugging_face_tensors(const ModelSource& source) {
  const HuggingFaceOrigin& origin = source.description().hugging_face.value();
  HuggingFaceModel model = hugging_face_model(origin.family, source.description().config, origin.form);
  for (DiskTensor& tensor : model.tensors) tensor.type = type_there(origin, tensor, source);
  return model;
}

HuggingFaceFolder hugging_face_folder(const ModelSource& source, const HuggingFaceOptions& options) {
  const ModelDescription& description = source.description();
  if (!description.hugging_face || (!options.family.empty() && options.family != description.hugging_face->family)) {
    const StoredType type = description.compute ? stored_type_of(*description.compute) : most_common_type(source);
    return hugging_face_folder(description.config, type, options);
  }
  const HuggingFaceOrigin& origin = *description.hugging_face;
  HuggingFaceFolder folder{hugging_face_model(origin.family, description.config, origin.form), source.side_files()};
  set_experts(folder.model, options);
  if (options.type) {
    set_types(folder.model, *options.type);
    set_dtype(folder.side_files, *options.type);
  } else {
    for (DiskTensor& tensor : folder.model.tensors) tensor.type = type_there(origin, tensor, source);
  }
  return folder;
}

HuggingFaceFolder hugging_face_folder(const ModelConfig& config, StoredType type, const HuggingFaceOptions& options) {
  FamilyShape shape = shape_of_family(config, options.family);
  HuggingFaceFolder folder{std::move(shape.model), {}};
  set_experts(folder.model, options);
  set_types(folder.model, options.type.value_or(type));
  folder.side_files = {{config_name, shape.config.dump(2) + "\n"}};
  set_dtype(folder.side_files, options.type.value_or(type));
  return folder;
}

HuggingFaceFolder hugging_face_folder(const std::filesystem::path& dir, StoredType type,
                                      const HuggingFaceOptions& options) {
  HuggingFaceModel model = read_hugging_face_config(dir);
  if (!options.family.empty() && options.family != model.family)
    return hugging_face_folder(model.config, type, options);
  HuggingFaceFolder folder{std::move(model), read_side_files(dir)};
  set_experts(folder.model, options);
  set_types(folder.model, options.type.value_or(type));
  set_dtype(folder.side_files, options.type.value_or(type));
  return folder;
}

std::optional<HuggingFaceOrigin> origin_with_types(const ModelSource& source) {
  if (!source.description().hugging_face) return std::nullopt;
  HuggingFaceOrigin origin = *source.description().hugging_face;
  const HuggingFaceModel model = hugging_face_tensors(source);
  std::map<StoredType, std::size_t> count;
  for (const DiskTensor& tensor : model.tensors) ++count[tensor.type];
  origin.type = most_common(count);
  origin.types.clear();
  for (const DiskTensor& tensor : model.tensors)
    if (tensor.type != *origin.type) origin.types[tensor.name] = tensor.type;
  return origin;
}

ConvertResult write_hugging_face(const ModelSource& source, const ConvertOptions& options) {
  const auto [model, side_files] = hugging_face_folder(source, options.hugging_face);
  const std::vector<TensorEntry> others = source.other_tensors();

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
