// What a checkpoint of a run holds: a folder iter_NNNNNNN with
//
//   manifest.json            this description, with a checksum of its own; a folder without one is not a checkpoint
//   rank-NNNNN.safetensors   boxes of logical tensors, written by one rank
//
// Tensors are named CONTENT/IDENTITY: "weight/language.main.3.gate.7", "first_moment/language.main.3.gate.7". There is no
// physical layout: a tensor has its logical shape, and its boxes, whoever wrote them, tile it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "weft/base/json.h"
#include "weft/base/shape.h"
#include "weft/checkpoint/stored_type.h"
#include "weft/model/boxes.h"

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

struct Manifest {
  std::int64_t iteration = 0;
  // What the run says of itself: its position in the data, the optimizer's step, its flags. An object.
  std::string run = "{}";                     // JSON
  std::map<std::string, std::int64_t> files;  // bytes, by name
  ManifestTensors tensors;
};

inline constexpr const char* manifest_name = "manifest.json";

// The tensors of one rank's file, for the way to the rank that writes the manifest.
std::string to_text(const ManifestTensors& tensors);
void add_tensors(ManifestTensors& all, const std::string& text);  // BugError: two ranks differ in shape or type

std::string to_text(const Manifest& manifest);
// UserError naming `where` and what is wrong: damaged, of another version, boxes that do not tile their tensor.
Manifest parse_manifest(const std::string& text, const std::string& where);

}  // namespace weft
