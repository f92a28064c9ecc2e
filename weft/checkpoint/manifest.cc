#include "weft/checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "weft/base/checksum.h"
#include "weft/base/error.h"
#include "weft/checkpoint/json_strict.h"

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

Shape shape_of(const AnyJson& dims) {
  if (!dims.is_array() || dims.size() > static_cast<std::size_t>(Shape::max_dims))
    throw UserError("{} is not a shape", dims.dump());
  Shape shape;
  double elements = 1;
  for (const AnyJson& dim : dims) {
    if (!dim.is_number_integer() || dim.get<std::int64_t>() < 0) throw UserError("{} is not a shape", dims.dump());
    elements *= static_cast<double>(dim.get<std::int64_t>());
    shape.append(dim.get<std::int64_t>());
  }
  if (elements > 0x1p53) throw UserError("{} is not a shape that memory could hold", dims.dump());
  return shape;
}

ManifestBox box_of(const AnyJson& json, const Shape& shape) {
  ManifestBox box;
  box.file = json.at("file").get<std::string>();
  box.box.extent = shape_of(json.at("extent"));
  const AnyJson& begin = json.at("begin");
  const bool fits = box.box.extent.dims() == shape.dims() && begin.is_array() &&
                    begin.size() == static_cast<std::size_t>(shape.dims());
  if (!fits) throw UserError("a box of {} has {} dims", to_text(shape), box.box.extent.dims());
  for (int d = 0; d < shape.dims(); ++d) {
    const auto at = begin[static_cast<std::size_t>(d)].get<std::int64_t>();
    if (at < 0 || at > shape[d] || box.box.extent[d] > shape[d] - at)
      throw UserError("a box reaches beyond {}", to_text(shape));
    box.box.begin[static_cast<std::size_t>(d)] = at;
  }
  const std::optional<std::uint64_t> checksum = parse_checksum(json.at("checksum").get<std::string>());
  if (!checksum) throw UserError("{} is not a checksum", json.at("checksum").dump());
  box.checksum = *checksum;
  return box;
}

bool overlap(const Box& a, const Box& b) {
  for (int d = 0; d < a.extent.dims(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (a.begin[i] + a.extent[d] <= b.begin[i] || b.begin[i] + b.extent[d] <= a.begin[i]) return false;
  }
  return true;
}

void check_tiling(const ManifestTensor& tensor) {
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < tensor.boxes.size(); ++i) {
    elements += tensor.boxes[i].box.extent.elements();
    for (std::size_t k = 0; k < i; ++k)
      if (overlap(tensor.boxes[i].box, tensor.boxes[k].box))
        throw UserError("its boxes in {} and {} overlap", tensor.boxes[k].file, tensor.boxes[i].file);
  }
  if (elements != tensor.shape.elements())
    throw UserError("its boxes hold {} of {} elements", elements, tensor.shape.elements());
}

ManifestTensors tensors_of(const AnyJson& json) {
  ManifestTensors tensors;
  for (const auto& [name, entry] : json.items()) {
    try {
      ManifestTensor tensor;
      const std::optional<StoredType> type = stored_type_of(entry.at("dtype").get<std::string>());
      if (!type || !(is_float(*type) || name.starts_with(other_tensor_prefix)))
        throw UserError("its dtype is {}", entry.at("dtype").dump());
      tensor.type = *type;
      tensor.shape = shape_of(entry.at("shape"));
      for (const AnyJson& box : entry.at("boxes")) tensor.boxes.push_back(box_of(box, tensor.shape));
      tensors.emplace(name, std::move(tensor));
    } catch (const UserError& error) {
      throw UserError("tensor '{}': {}", name, error.what());
    }
  }
  return tensors;
}

std::map<std::string, ManifestSideFile> side_files_of(const AnyJson& json) {
  std::map<std::string, ManifestSideFile> files;
  for (const auto& [name, entry] : json.items()) {
    if (std::filesystem::path(name).filename() != name) throw UserError("'{}' is not the name of a file", name);
    const std::optional<std::uint64_t> checksum = parse_checksum(entry.at("checksum").get<std::string>());
    if (!checksum) throw UserError("{} is not a checksum", entry.at("checksum").dump());
    files[name] = {entry.at("bytes").get<std::int64_t>(), *checksum};
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
    if (!json.is_object() || json.value("format", "") != format_name)
      throw UserError("'format' must be \"{}\"", format_name);
    if (json.at("version") != format_version)
      throw UserError("'version' is {}; this Weft reads version {}", json["version"].dump(), format_version);
    const std::optional<std::uint64_t> checksum = parse_checksum(json.at("checksum").get<std::string>());
    json.erase("checksum");
    if (!checksum || *checksum != checksum_of(json.dump()))
      throw UserError("its checksum does not fit what it says: the file is damaged");
    Manifest manifest;
    manifest.iteration = json.at("iteration").get<std::int64_t>();
    manifest.run = json.at("run").dump();
    manifest.files = json.at("files").get<std::map<std::string, std::int64_t>>();
    if (json.contains("model")) manifest.model = json["model"].dump();
    if (json.contains("side_files")) manifest.side_files = side_files_of(json["side_files"]);
    manifest.tensors = tensors_of(json.at("tensors"));
    for (const auto& [name, tensor] : manifest.tensors) {
      try {
        check_tiling(tensor);
        for (const ManifestBox& box : tensor.boxes)
          if (!manifest.files.contains(box.file)) throw UserError("it is in {}, which 'files' does not name", box.file);
      } catch (const UserError& error) {
        throw UserError("tensor '{}': {}", name, error.what());
      }
    }
    return manifest;
  } catch (const AnyJson::exception& error) {
    throw UserError("{}: not the manifest of a checkpoint: {}", where, reason_of(error));
  } catch (const UserError& error) {
    throw UserError("{}: {}", where, error.what());
  }
}

}  // namespace weft
