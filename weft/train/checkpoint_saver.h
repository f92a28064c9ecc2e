// Saves a session as checkpoints, between steps or beside them.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "weft/checkpoint/checkpoint_in_progress.h"
#include "weft/checkpoint/model_description.h"
#include "weft/checkpoint/new_folder.h"
#include "weft/checkpoint/run_position.h"
#include "weft/train/session.h"

namespace weft {

struct SaveOptions {
  std::filesystem::path dir;
  bool optimizer = true;      // its state, too
  std::int64_t keep = 0;      // of the newest; 0: all
  std::int64_t retained = 0;  // those of iterations that are multiples of it stay in any case; 0: none
  const FileSystem* files = &machine_files();
  // Of a model that came from a Hugging Face folder: what the way back needs.
  std::optional<HuggingFaceOrigin> hugging_face = {};
  SideFiles side_files = {};
};

// With several ranks all of them make every call, and each writes what it owns. RunError when saving fails; the checkpoints
// that are there stay as they are.
//
// A save beside steps has three parts. Between two steps every rank copies what it owns to the host (`begin`). Then a
// thread of each rank writes the copy to its file. When all of them are done, which ranks ask each other between later
// steps (`poll`), a thread of the first rank commits. The threads only touch files: communicators belong to the thread that
// runs steps, one call after another in the same order on all ranks, and a second thread would break that order. Nor do they
// look for each other's files: what a rank sees of others' files on a network file system may be late.
class CheckpointSaver {
 public:
  CheckpointSaver(Session& session, SaveOptions options);
  ~CheckpointSaver();  // gives up what is still being written
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  void set_origin(std::optional<HuggingFaceOrigin> hugging_face, SideFiles side_files) {
    options_.hugging_face = std::move(hugging_face);
    options_.side_files = std::move(side_files);
  }
  std::int64_t bytes() const;  // of what this rank owns
  // arguments: flags of the run, a JSON object. Both wait for the save before.
  void save(const RunPosition& position, const std::string& arguments);
  void begin(const RunPosition& position, const std::string& arguments);
  // Whether a save that was begun is not known to be complete.
  bool pending() const { return pending_ != nullptr; }
  // Of the save that was begun: the iteration, once it is complete.
  std::optional<std::int64_t> poll();
  std::optional<std::int64_t> finish();  // waits for it

 private:
  struct Pending;
  class Copy;

  CheckpointInProgress in_progress(std::int64_t iteration) const { return {options_.dir, iteration, *options_.files}; }
  SavedRun saved_run(const RunPosition& position, const std::string& arguments) const;
  void commit(const CheckpointInProgress& checkpoint, const std::vector<CheckpointInProgress::Written>& of_ranks,
              const SavedRun& run) const;
  void begin_commit();
  bool is_first() const { return session_.options().layout.rank().value == 0; }

  Session& session_;
  SaveOptions options_;
  std::unique_ptr<Copy> copy_;  // kept from save to save
  std::unique_ptr<Pending> pending_;
};

// A save between steps.
void save_checkpoint(Session& session, const SaveOptions& options, const RunPosition& position,
                     const std::string& arguments);

}  // namespace weft
