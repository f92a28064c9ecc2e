#include "weft/checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "weft/base/checksum.h"
#include "weft/base/error.h"
#include "weft/checkpoint/json_strict.h"
#include "weft/checkpoint/tiling.h"

namespace weft {
namespace {

using AnyJson = nlohmann::json;

constexpr const char* format_name = "weft checkpoint";
constexpr int format_version = 1;

AnyJson to_json(const Shape& shape) {
  AnyJson dims = AnyJson::array();
  for (int d = 0; d < shape.dims(); ++d) dims.push_back(shape[d]);
  return dims;
}

AnyJson to_json(const ManifestTensors& tensors) {
  AnyJson all = AnyJson::object();
  for (const auto& [name, tensor] : tensors) {
    AnyJson boxes = AnyJson::array();
    for (const ManifestBox& box : tensor.boxes) {
      AnyJson begin = AnyJson::array();
      for (int d = 0; d < tensor.shape.dims(); ++d) begin.push_back(box.box.begin[static_cast<std::size_t>(d)]);
      boxes.push_back({{"file", box.file},
                       {"begin", begin},
                       {"extent", to_json(box.box.extent)},
                       {"checksum", checksum_text(box.checksum)}});
    }
    all[name] = {{"dtype", name_of(tensor.type)}, {"shape", to_json(tensor.shape)}, {"boxes", boxes}};
  }
  return all;
}

// Of what is shown in a message; the value may be the whole file.
std::string shown(const AnyJson& value) {
  std::string text = value.dump(-1, ' ', true, AnyJson::error_handler_t::replace);
  return text.size() > 80 ? text.substr(0, 77) + "..." : text;
}

std::int64_t whole_number(const AnyJson& value, const char* what) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<std::uint64_t>() <= std::uint64_t{1} << 62) &&
                    value.get<std::int64_t>() >= 0;
  if (!fits) throw UserError("its {} is {}, not a whole number that is not negative", what, shown(value));
  return value.get<std::int64_t>();
}

const std::string& text_in(const AnyJson& object, const char* key) {
  const AnyJson& value = object.at(key);
  if (!value.is_string()) throw UserError("its {} is {}, not a text", key, shown(value));
  return value.get_ref<const std::string&>();
}

Shape shape_of(const AnyJson& dims, const char* what) {
  if (!dims.is_array() || dims.size() > static_cast<std::size_t>(Shape::max_dims))
    throw UserError("its {} is {}, not at most {} numbers", what, shown(dims), Shape::max_dims);
  Shape shape;
  std::int64_t elements = 1;  // a product over dims without elements, too
  for (const AnyJson& dim : dims) {
    shape.append(whole_number(dim, what));
    if (__builtin_mul_overflow(elements, std::max<std::int64_t>(shape[-1], 1), &elements) || elements > std::int64_t{1}
                                                                                                            << 53)
      throw UserError("its {} is {}, which no memory could hold", what, shown(dims));
  }
  return shape;
}

ManifestBox box_of(const AnyJson& json, const Shape& shape) {
  if (!json.is_object()) throw UserError("one of its boxes is {}, not an object", shown(json));
  ManifestBox box;
  box.file = text_in(json, "file");
  box.box.extent = shape_of(json.at("extent"), "extent");
  const Shape begin = shape_of(json.at("begin"), "begin");
  if (box.box.extent.dims() != shape.dims() || begin.dims() != shape.dims())
    throw UserError("a box of {} has {} dims", to_text(shape), std::max(box.box.extent.dims(), begin.dims()));
  for (int d = 0; d < shape.dims(); ++d) {
    if (begin[d] > shape[d] || box.box.extent[d] > shape[d] - begin[d])
      throw UserError("a box reaches beyond {}", to_text(shape));
    box.box.begin[static_cast<std::size_t>(d)] = begin[d];
  }
  const std::optional<std::uint64_t> checksum = parse_checksum(text_in(json, "checksum"));
  if (!checksum) throw UserError("{} is not a checksum", shown(json.at("checksum")));
  box.checksum = *checksum;
  return box;
}

void check_boxes(const Manifest& manifest, const std::string& name, const ManifestTensor& tensor) {
  std::vector<const Box*> boxes;
  for (const ManifestBox& box : tensor.boxes) {
    boxes.push_back(&box.box);
    if (!manifest.files.contains(box.file))
      throw UserError("tensor '{}': it is in {}, which 'files' does not name", name, box.file);
  }
  check_tiling(tensor.shape, std::move(boxes), fmt::format("tensor '{}'", name), "boxes");
}

// In another folder it would be another checkpoint's.
void require_file_name(const std::string& name) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
    throw UserError("it names '{}', which is not the name of a file in this folder", name);
}

std::map<std::string, std::int64_t> files_of(const AnyJson& json) {
  if (!json.is_object()) throw UserError("'files' is {}, not an object", shown(json));
  std::map<std::string, std::int64_t> files;
  for (const auto& [name, bytes] : json.items()) {
    require_file_name(name);
    try {
      files[name] = whole_number(bytes, "size");
    } catch (const UserError& error) {
      throw UserError("file '{}': {}", name, error.what());
    }
  }
  return files;
}

ManifestTensors tensors_of(const AnyJson& json) {
  if (!json.is_object()) throw UserError("'tensors' is {}, not an object", shown(json));
  ManifestTensors tensors;
  for (const auto& [name, entry] : json.items()) {
    try {
      ManifestTensor tensor;
      const std::optional<StoredType> type = stored_type_of(text_in(entry, "dtype"));
      if (!type || !(is_float(*type) || name.starts_with(other_tensor_prefix)))
        throw UserError("its dtype is {}", shown(entry.at("dtype")));
      tensor.type = *type;
      tensor.shape = shape_of(entry.at("shape"), "shape");
      for (const AnyJson& box : entry.at("boxes")) tensor.boxes.push_back(box_of(box, tensor.shape));
      tensors.emplace_hint(tensors.end(), name, std::move(tensor));
    } catch (const AnyJson::exception& error) {
      throw UserError("tensor '{}': {}", name, reason_of(error));
    } catch (const UserError& error) {
      throw UserError("tensor '{}': {}", name, error.what());
    }
  }
  return tensors;
}

std::map<std::string, ManifestSideFile> side_files_of(const AnyJson& json) {
  if (!json.is_object()) throw UserError("'side_files' is {}, not an object", shown(json));
  std::map<std::string, ManifestSideFile> files;
  for (const auto& [name, entry] : json.items()) {
    require_file_name(name);
    try {
      const std::optional<std::uint64_t> checksum = parse_checksum(text_in(entry, "checksum"));
      if (!checksum) throw UserError("{} is not a checksum", shown(entry.at("checksum")));
      files[name] = {whole_number(entry.at("bytes"), "size"), *checksum};
    } catch (const UserError& error) {
      throw UserError("file '{}': {}", name, error.what());
    }
  }
  return files;
}

}  // namespace

std::string tensor_name(Content content, const ParameterIdentity& identity) {
  return fmt::format("{}/{}", name_of(content), to_text(identity));
}

std::string to_text(const ManifestTensors& tensors) { return to_json(tensors).dump(); }

void add_tensors(ManifestTensors& all, const std::string& text) {
  for (auto& [name, tensor] : tensors_of(AnyJson::parse(text))) {
    const auto [at, is_new] = all.try_emplace(name, tensor);
    if (is_new) continue;
    WEFT_CHECK(at->second.shape == tensor.shape && at->second.type == tensor.type, "two ranks write {} as {} and {}",
               name, to_text(at->second.shape), to_text(tensor.shape));
    at->second.boxes.insert(at->second.boxes.end(), tensor.boxes.begin(), tensor.boxes.end());
  }
}

std::string to_text(const Manifest& manifest) {
  AnyJson json = {{"format", format_name},           {"version", format_version},
                  {"iteration", manifest.iteration}, {"run", AnyJson::parse(manifest.run)},
                  {"files", manifest.files},         {"tensors", to_json(manifest.tensors)}};
  if (manifest.model != "{}") json["model"] = AnyJson::parse(manifest.model);
  for (const auto& [name, file] : manifest.side_files)
    json["side_files"][name] = {{"bytes", file.bytes}, {"checksum", checksum_text(file.checksum)}};
  json["checksum"] = checksum_text(checksum_of(json.dump()));
  return json.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& where) {
  AnyJson json = parse_strict_json(text, where);
  try {
    if (!json.is_object() || !json.contains("format") || json["format"] != format_name)
      throw UserError("'format' must be \"{}\"", format_name);
    if (json.at("version") != format_version)
      throw UserError("'version' is {}; this Weft reads version {}", shown(json["version"]), format_version);
    const std::optional<std::uint64_t> checksum = parse_checksum(text_in(json, "checksum"));
    json.erase("checksum");
    if (!checksum || *checksum != checksum_of(json.dump()))
      throw UserError("its checksum does not fit its contents: the file is damaged");
    Manifest manifest;
    manifest.iteration = whole_number(json.at("iteration"), "iteration");
    manifest.run = json.at("run").dump();
    manifest.files = files_of(json.at("files"));
    if (json.contains("model")) manifest.model = json["model"].dump();
    if (json.contains("side_files")) manifest.side_files = side_files_of(json["side_files"]);
    manifest.tensors = tensors_of(json.at("tensors"));
    for (const auto& [name, tensor] : manifest.tensors) check_boxes(manifest, name, tensor);
    return manifest;
  } catch (const AnyJson::exception& error) {
    throw UserError("{}: not the manifest of a checkpoint: {}", where, reason_of(error));
  } catch (const UserError& error) {
    throw UserError("{}: {}", where, error.what());
  }
}

}  // namespace weft
