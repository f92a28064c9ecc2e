// What a checkpoint holds: of a run a folder iter_NNNNNNN, of a model alone any folder, with
//
//   manifest.json            this description, with a checksum of its own; a folder without one is not a checkpoint
//   *.safetensors            boxes of logical tensors; a run has one file for each rank
//   config.json and others   of the Hugging Face folder that the model came from, as they were
//
// Tensors are named CONTENT/IDENTITY: "weight/language.main.3.gate.7", "first_moment/language.main.3.gate.7"; those of a
// Hugging Face folder that are not parameters other/NAME. There is no physical layout: a tensor has its logical shape,
// and its boxes, whoever wrote them, tile it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/json.h"
#include "weft/base/shape.h"
#include "weft/checkpoint/stored_type.h"
#include "weft/model/boxes.h"
#include "weft/model/content.h"
#include "weft/model/parameters.h"

namespace weft {

struct ManifestBox {
  std::string file;  // which holds it as a tensor of its own, under the tensor's name
  Box box;
  std::uint64_t checksum = 0;  // of its bytes
};

struct ManifestTensor {
  StoredType type = StoredType::f32;
  Shape shape;  // logical
  std::vector<ManifestBox> boxes;
};

using ManifestTensors = std::map<std::string, ManifestTensor>;  // by name

struct ManifestSideFile {
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;
};

struct Manifest {
  std::int64_t iteration = 0;
  // How far the run is: its position in the data, the optimizer's step, its flags. An object; an empty one of a
  // model without a run.
  std::string run = "{}";                     // JSON
  std::string model = "{}";                   // JSON of a ModelDescription; an empty object: not recorded
  std::map<std::string, std::int64_t> files;  // with tensors: bytes, by name
  std::map<std::string, ManifestSideFile> side_files;
  ManifestTensors tensors;
};

inline constexpr const char* manifest_name = "manifest.json";
inline constexpr std::string_view other_tensor_prefix = "other/";
// "weight/language.main.3.gate.7"
std::string tensor_name(Content content, const ParameterIdentity& identity);

// The tensors of one rank's file, for the way to the rank that writes the manifest.
std::string to_text(const ManifestTensors& tensors);
void add_tensors(ManifestTensors& all, const std::string& text);  // BugError: two ranks differ in shape or type

std::string to_text(const Manifest& manifest);
// UserError naming `where` and what is wrong: damaged, of another version, boxes that do not tile their tensor.
Manifest parse_manifest(const std::string& text, const std::string& where);

}  // namespace weft
