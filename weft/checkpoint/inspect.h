// What a folder holds: a checkpoint of one of three forms, or several of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "weft/base/json.h"
#include "weft/checkpoint/hugging_face.h"
#include "weft/checkpoint/run_checkpoint.h"
#include "weft/checkpoint/tensor_view.h"
#include "weft/checkpoint/torch_dist/torch_dist_checkpoint.h"

namespace weft {

enum class FolderForm : std::uint8_t { weft, hugging_face, megatron };
std::string_view name_of(FolderForm form);  // "Weft checkpoint"
std::string_view id_of(FolderForm form);    // "weft", "hf", "megatron"

// An open checkpoint, and what it records about itself. What is not recorded is absent.
struct OpenedCheckpoint {
  FolderForm form = FolderForm::weft;
  std::filesystem::path folder;
  std::string family, pattern, compute;  // compute: the dtype that the run computes in
  std::optional<std::int64_t> iteration, consumed_samples, optimizer_steps, ranks;
  Json arguments = Json::object();  // of the run that wrote it; their names are its own
  std::string problem;              // why the model is not read; the tensors can be listed all the same
  std::vector<std::pair<std::string, std::int64_t>> files;  // with tensors: bytes, by name
  std::unique_ptr<TensorView> tensors;                      // under the names that the form has

  // Of these, the one of the form; `weights` is null where there is a problem.
  std::unique_ptr<RunCheckpoint> run;
  std::unique_ptr<SafetensorsDirectory> safetensors;
  std::unique_ptr<HuggingFaceWeights> weights;
  std::unique_ptr<TorchDistCheckpoint> torch_dist;
};

// `path` is a checkpoint, or a folder of several, of which the tracker names one. UserError for what is not one, is damaged,
// or has a form that Weft does not read, with what to do instead.
OpenedCheckpoint open_checkpoint(const std::filesystem::path& path);
// Compares every byte with its checksum, where the form has them. UserError names file and tensor. `progress` is called with
// the bytes that have been read, of `bytes_of(checkpoint)`. False: the form has none.
[[nodiscard]] bool verify_checksums(const OpenedCheckpoint& checkpoint,
                                    const std::function<void(std::size_t bytes)>& progress);
std::int64_t bytes_of(const OpenedCheckpoint& checkpoint);  // of all tensors
// What a tensor holds, by its name: "weight", "first_moment", "second_moment", "momentum", "master_weight", "optimizer" (else), "other".
std::string content_of(FolderForm form, std::string_view name);

// A folder in that of --save.
struct SavedIteration {
  std::string name;  // "iter_0000012"
  std::int64_t iteration = 0;
  std::string form;        // "weft", "megatron"; "": not known
  bool complete = false;   // and as far as can be seen without reading tensors undamaged
  std::string problem;     // why not
  std::int64_t bytes = 0;  // of its files
};
struct SavedIterations {
  std::vector<SavedIteration> iterations;  // ascending; then what saves left that did not finish
  std::optional<std::int64_t> named;       // by the tracker
  std::string tracker_problem;
};
// Whether it has folders iter_N or a tracker, and is not itself a checkpoint.
bool holds_iterations(const std::filesystem::path& dir);
SavedIterations list_iterations(const std::filesystem::path& dir);

}  // namespace weft
