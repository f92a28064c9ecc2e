#include "weft/train/checkpoint_saver.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <span>
#include <thread>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/checkpoint/manifest.h"

namespace weft {
namespace {

using Written = CheckpointInProgress::Written;

std::vector<BoxToWrite> owned_boxes(Session& session, bool optimizer) {
  const ModelParameters& parameters = session.parameters();
  const std::vector<ParameterTensor>& tensors = session.module().parameters;
  std::vector<BoxToWrite> boxes;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!session.options().layout.owns(tensors[i].placement)) continue;
    const TensorId id(static_cast<std::int64_t>(i));
    const auto add = [&](Content content) {
      if (!parameters.has(id, content)) return;
      for (const ParameterPart& part : tensors[i].parts)
        boxes.push_back(
            {tensor_name(content, part.identity), part.shape, part.box, parameters.type_of(id, content),
             [&parameters, &part, id, content](std::int64_t first, std::int64_t count, std::span<std::byte> buffer) {
               return parameters.read(id, content, part, first, count, buffer);
             }});
    };
    add(Content::weight);
    if (!optimizer) continue;
    for (const Content state : optimizer_states) add(state);
  }
  return boxes;
}

std::size_t bytes_of(const BoxToWrite& box) {
  return static_cast<std::size_t>(box.box.extent.elements()) * size_of(box.dtype);
}

// What all ranks wrote; on the first rank.
std::vector<Written> gathered(const RankExchange& ranks, RankId own, const Written& written) {
  const std::int64_t words[] = {std::ssize(written.file), std::ssize(written.tensors), written.bytes};
  const std::vector<std::int64_t> all = ranks.gather(words);
  std::vector<Written> of_ranks;
  for (int r = 0; r < ranks.ranks(); ++r) {
    const auto at = static_cast<std::size_t>(3 * r);
    std::string text;
    if (r == own.value)
      text = written.file + written.tensors;
    else if (own.value == 0)
      text.resize(static_cast<std::size_t>(all[at] + all[at + 1]));
    ranks.send_to_first(RankId(r), std::as_writable_bytes(std::span(text)));
    if (own.value == 0)
      of_ranks.push_back({text.substr(0, static_cast<std::size_t>(all[at])),
                          text.substr(static_cast<std::size_t>(all[at])), all[at + 2]});
  }
  return of_ranks;
}

// Work on a thread of its own, which must not outlive what it works with.
class Background {
 public:
  explicit Background(std::function<void()> work)
      : thread_([this, work = std::move(work)] {
          try {
            work();
          } catch (...) {
            error_ = std::current_exception();
          }
          done_ = true;
        }) {}
  ~Background() {
    if (thread_.joinable()) thread_.join();
  }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Throws what went wrong.
  bool done() {
    if (!done_) return false;
    wait();
    return true;
  }
  void wait() {
    if (thread_.joinable()) thread_.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::atomic<bool> done_{false};
  std::exception_ptr error_;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace

// The state that this rank owns, in host memory.
class CheckpointSaver::Copy {
 public:
  // The same boxes, read from the copy.
  std::vector<BoxToWrite> take(Device& device, std::vector<BoxToWrite> boxes) {
    std::size_t all = 0;
    for (const BoxToWrite& box : boxes) all += bytes_of(box);
    if (!memory_ || memory_->bytes() < all) {
      memory_.reset();
      memory_ = device.allocate_host(all);
    }
    std::size_t at = 0;
    for (BoxToWrite& box : boxes) {
      const std::span<std::byte> here(memory_->data() + at, bytes_of(box));
      at += here.size();
      const std::span<const std::byte> there = box.read(0, box.box.extent.elements(), here);
      if (!there.empty() && there.data() != here.data()) std::memcpy(here.data(), there.data(), there.size());
      const std::size_t size = size_of(box.dtype);
      box.read = [here, size](std::int64_t first, std::int64_t count, std::span<std::byte>) {
        return std::span<const std::byte>(
            here.subspan(static_cast<std::size_t>(first) * size, static_cast<std::size_t>(count) * size));
      };
    }
    return boxes;
  }

 private:
  std::unique_ptr<Memory> memory_;
};

struct CheckpointSaver::Pending {
  Pending(CheckpointInProgress in_progress, SavedRun described)
      : checkpoint(std::move(in_progress)), run(std::move(described)) {}

  CheckpointInProgress checkpoint;
  SavedRun run;
  Written written;
  std::atomic<bool> given_up{false};
  bool committing = false;
  std::unique_ptr<Background> work;  // the last: it uses the others. Null while there is nothing to do here
};

CheckpointSaver::CheckpointSaver(Session& session, SaveOptions options)
    : session_(session), options_(std::move(options)) {}

CheckpointSaver::~CheckpointSaver() {
  if (pending_) pending_->given_up = true;
}

std::int64_t CheckpointSaver::bytes() const {
  std::size_t bytes = 0;
  for (const BoxToWrite& box : owned_boxes(session_, options_.optimizer)) bytes += bytes_of(box);
  return static_cast<std::int64_t>(bytes);
}

SavedRun CheckpointSaver::saved_run(const RunPosition& position, const std::string& arguments) const {
  return {position, session_.options().layout.ranks(), arguments};
}

void CheckpointSaver::commit(const CheckpointInProgress& checkpoint, const std::vector<Written>& of_ranks,
                             const SavedRun& run) const {
  const ModelDescription model{session_.options().config, session_.options().precision.compute, options_.hugging_face};
  checkpoint.commit(of_ranks, to_json(run).dump(), to_json(model).dump(), options_.side_files);
  if (options_.keep > 0) remove_old_checkpoints(options_.dir, options_.keep, options_.retained, *options_.files);
}

void CheckpointSaver::save(const RunPosition& position, const std::string& arguments) {
  finish();
  const CheckpointInProgress checkpoint = in_progress(position.iteration);
  if (is_first()) checkpoint.begin();
  session_.ranks().wait_for_all();
  try {
    const RankId rank = session_.options().layout.rank();
    const Written written = checkpoint.write(rank, owned_boxes(session_, options_.optimizer));
    const std::vector<Written> of_ranks = gathered(session_.ranks(), rank, written);
    if (is_first()) commit(checkpoint, of_ranks, saved_run(position, arguments));
  } catch (...) {
    if (session_.ranks().ranks() == 1) checkpoint.give_up();
    throw;
  }
  session_.ranks().wait_for_all();
}

void CheckpointSaver::begin(const RunPosition& position, const std::string& arguments) {
  finish();
  auto pending = std::make_unique<Pending>(in_progress(position.iteration), saved_run(position, arguments));
  if (is_first()) pending->checkpoint.begin();
  session_.ranks().wait_for_all();
  if (!copy_) copy_ = std::make_unique<Copy>();
  std::vector<BoxToWrite> boxes = copy_->take(session_.device(), owned_boxes(session_, options_.optimizer));
  for (BoxToWrite& box : boxes)
    box.read = [read = std::move(box.read), &given_up = pending->given_up](std::int64_t first, std::int64_t count,
                                                                           std::span<std::byte> buffer) {
      if (given_up) throw RunError("the save was given up");
      return read(first, count, buffer);
    };
  pending_ = std::move(pending);
  pending_->work = std::make_unique<Background>(
      [&pending = *pending_, rank = session_.options().layout.rank(), boxes = std::move(boxes)] {
        pending.written = pending.checkpoint.write(rank, boxes);
      });
}

// All ranks have written.
void CheckpointSaver::begin_commit() {
  pending_->committing = true;
  std::vector<Written> of_ranks = gathered(session_.ranks(), session_.options().layout.rank(), pending_->written);
  pending_->work.reset();
  if (is_first())
    pending_->work = std::make_unique<Background>([this, &pending = *pending_, of_ranks = std::move(of_ranks)] {
      commit(pending.checkpoint, of_ranks, pending.run);
    });
}

std::optional<std::int64_t> CheckpointSaver::poll() {
  if (!pending_) return std::nullopt;
  const std::int64_t done = !pending_->work || pending_->work->done();
  const std::vector<std::int64_t> all = session_.ranks().gather(std::span(&done, 1));
  if (*std::min_element(all.begin(), all.end()) == 0) return std::nullopt;
  if (!pending_->committing) {
    begin_commit();
    return std::nullopt;
  }
  const std::int64_t iteration = pending_->run.position.iteration;
  pending_.reset();
  return iteration;
}

std::optional<std::int64_t> CheckpointSaver::finish() {
  if (!pending_) return std::nullopt;
  if (pending_->work) pending_->work->wait();
  if (!pending_->committing) begin_commit();
  if (pending_->work) pending_->work->wait();
  session_.ranks().wait_for_all();
  const std::int64_t iteration = pending_->run.position.iteration;
  pending_.reset();
  return iteration;
}

void save_checkpoint(Session& session, const SaveOptions& options, const RunPosition& position,
                     const std::string& arguments) {
  CheckpointSaver(session, options).save(position, arguments);
}

}  // namespace weft
