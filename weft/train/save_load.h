// Saves a session as a checkpoint, and goes on from one, in any layout.
#pragma once

#include <filesystem>
#include <string>

#include "weft/checkpoint/find_checkpoint.h"
#include "weft/checkpoint/run_checkpoint.h"
#include "weft/checkpoint/run_position.h"
#include "weft/train/session.h"
#include "weft/train/strictness.h"

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

struct LoadOptions {
  bool optimizer = true;  // its state, too
  Strictness strictness = Strictness::assume_ok_unexpected;
  std::uint64_t seed = 0;  // of initial values
  Warn warn = {};
};

// Sets weights and, if asked for, the optimizer's state; each rank reads what it holds. Returns where the run stood; a model
// that no run has saved begins anew. UserError for what the checkpoint lacks or has in another shape, before anything is
// changed.
RunPosition load_checkpoint(Session& session, const CheckpointReader& checkpoint, const LoadOptions& options = {});

}  // namespace weft
