// Saves a session as a checkpoint, and goes on from one, in any layout.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "weft/checkpoint/run_checkpoint.h"
#include "weft/checkpoint/run_position.h"
#include "weft/train/session.h"

namespace weft {

struct SaveOptions {
  std::filesystem::path dir;
  bool optimizer = true;      // its state, too
  std::int64_t keep = 0;      // of the newest; 0: all
  std::int64_t retained = 0;  // those of iterations that are multiples of it stay in any case; 0: none
  // Of a model that came from a Hugging Face folder: what the way back needs.
  std::optional<HuggingFaceOrigin> hugging_face = {};
  SideFiles side_files = {};
};

// Called by all ranks; each writes what it owns. arguments: flags of the run, a JSON object. RunError when it fails; the
// checkpoints that are there stay as they are.
void save_checkpoint(Session& session, const SaveOptions& options, const RunPosition& position,
                     const std::string& arguments);

// Sets weights and, if asked for, the optimizer's state; each rank reads what it holds. Returns where the run stood; a model
// that no run has saved begins anew. UserError for what the checkpoint lacks or has in another shape.
RunPosition load_checkpoint(Session& session, const RunCheckpoint& checkpoint, bool optimizer);

// The checkpoint in `dir` that a run goes on from: of iteration `step` if given, or the one the tracker names, or `dir`
// itself where it is one; with last_complete the newest that is whole, whatever the tracker names. Nothing where there is
// no checkpoint at all.
std::unique_ptr<RunCheckpoint> find_checkpoint(const std::filesystem::path& dir, std::optional<std::int64_t> step,
                                               bool last_complete);

}  // namespace weft
