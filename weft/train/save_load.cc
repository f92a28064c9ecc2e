#include "weft/train/save_load.h"

#include <cstring>
#include <deque>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {
namespace {

constexpr Content contents[] = {Content::weight, Content::first_moment, Content::second_moment};

// Tensors that have just been read: a tensor holds many boxes, which are written in the order of their names.
class RecentTensors {
 public:
  explicit RecentTensors(const ModelParameters& parameters) : parameters_(parameters) {}

  const HostTensor& get(TensorId id, Content content) {
    for (const Entry& entry : entries_)
      if (entry.id == id && entry.content == content) return entry.values;
    constexpr std::size_t kept = 2;
    if (entries_.size() == kept) entries_.pop_front();
    entries_.push_back({id, content, parameters_.read(id, content)});
    return entries_.back().values;
  }

 private:
  struct Entry {
    TensorId id;
    Content content;
    HostTensor values;
  };
  const ModelParameters& parameters_;
  std::deque<Entry> entries_;
};

std::vector<BoxToWrite> owned_boxes(Session& session, RecentTensors& recent, bool optimizer) {
  const ModelParameters& parameters = session.parameters();
  const std::vector<ParameterTensor>& tensors = session.module().parameters;
  std::vector<BoxToWrite> boxes;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!session.options().layout.owns(tensors[i].placement)) continue;
    const TensorId id(static_cast<std::int64_t>(i));
    for (Content content : contents) {
      if (!parameters.has(id, content) || (content != Content::weight && !optimizer)) continue;
      const DType dtype = parameters.type_of(id, content);
      for (const ParameterPart& part : tensors[i].parts)
        boxes.push_back({tensor_name(content, part.identity), part.shape, part.box, dtype,
                         [&recent, &part, id, content](std::byte* out) {
                           const HostTensor& values = recent.get(id, content);
                           const BoxRuns runs = part.runs();
                           for (std::int64_t r = 0; r < runs.size(); ++r) {
                             const std::size_t bytes = static_cast<std::size_t>(runs[r].count) * size_of(values.dtype);
                             std::memcpy(out + static_cast<std::size_t>(r) * bytes, values.at(runs[r].tensor), bytes);
                           }
                         }});
    }
  }
  return boxes;
}

// What all ranks wrote; on the first rank.
std::vector<CheckpointInProgress::Written> gathered(const RankExchange& ranks, RankId own,
                                                    const CheckpointInProgress::Written& written) {
  const std::int64_t words[] = {std::ssize(written.file), std::ssize(written.tensors), written.bytes};
  const std::vector<std::int64_t> all = ranks.gather(words);
  std::vector<CheckpointInProgress::Written> of_ranks;
  for (int r = 0; r < ranks.ranks(); ++r) {
    const auto at = static_cast<std::size_t>(3 * r);
    std::string text = r == own.value ? written.file + written.tensors
                                      : std::string(static_cast<std::size_t>(all[at] + all[at + 1]), ' ');
    ranks.send_to_first(RankId(r), std::as_writable_bytes(std::span(text)));
    of_ranks.push_back({text.substr(0, static_cast<std::size_t>(all[at])),
                        text.substr(static_cast<std::size_t>(all[at])), all[at + 2]});
  }
  return of_ranks;
}

}  // namespace

void save_checkpoint(Session& session, const SaveOptions& options, const RunPosition& position,
                     const std::string& arguments) {
  const RankId rank = session.options().layout.rank();
  const CheckpointInProgress checkpoint(options.dir, position.iteration);
  if (rank.value == 0) checkpoint.begin();
  session.ranks().wait_for_all();
  RecentTensors recent(session.parameters());
  const auto written = checkpoint.write(rank, owned_boxes(session, recent, options.optimizer));
  const auto of_ranks = gathered(session.ranks(), rank, written);
  if (rank.value == 0) {
    const SavedRun run{position, session.options().layout.ranks(), arguments};
    const ModelDescription model{session.options().config, session.options().precision.compute, options.hugging_face};
    checkpoint.commit(of_ranks, to_json(run).dump(), to_json(model).dump(), options.side_files);
    if (options.keep > 0) remove_old_checkpoints(options.dir, options.keep, options.retained);
  }
  session.ranks().wait_for_all();
}

RunPosition load_checkpoint(Session& session, const RunCheckpoint& checkpoint, bool optimizer) {
  const std::string where = checkpoint.folder().string();
  const std::vector<ParameterTensor>& tensors = session.module().parameters;
  std::vector<std::string> missing;
  for (const ParameterTensor& tensor : tensors)
    for (const ParameterPart& part : tensor.parts)
      if (const std::string name = tensor_name(Content::weight, part.identity); !checkpoint.has(name))
        missing.push_back(to_text(part.identity));
  if (!missing.empty())
    throw UserError(
        "{}: {} parameters of this model are not in the checkpoint, {} first; it was saved with --pattern {}", where,
        missing.size(), missing.front(), checkpoint.description().config.pattern);

  session.set_parameters([&](const ParameterPart& part, HostTensor& values) {
    checkpoint.read(tensor_name(Content::weight, part.identity), part, values);
  });
  const std::optional<SavedRun> run = checkpoint.run();
  if (!run) return {};
  const RunPosition position = run->position;
  if (!optimizer) return position;
  const ModelParameters& parameters = session.parameters();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorId id(static_cast<std::int64_t>(i));
    for (Content content : {Content::first_moment, Content::second_moment}) {
      if (!parameters.has(id, content)) continue;
      HostTensor values(parameters.type_of(id, content), tensors[i].shape.elements());
      for (const ParameterPart& part : tensors[i].parts) {
        const std::string name = tensor_name(content, part.identity);
        if (!checkpoint.has(name))
          throw UserError(
              "{}: the optimizer's state is not in the checkpoint ('{}'); load it with --no-load-optim or "
              "--finetune",
              where, name);
        checkpoint.read(name, part, values);
      }
      parameters.write(id, content, values);
    }
  }
  session.set_steps_taken(position.optimizer_steps);
  return position;
}

std::unique_ptr<RunCheckpoint> find_checkpoint(const std::filesystem::path& dir, std::optional<std::int64_t> step,
                                               bool last_complete) {
  if (step) {
    const std::filesystem::path folder = checkpoint_folder(dir, *step);
    if (!std::filesystem::exists(folder)) {
      std::vector<std::string> there;
      for (std::int64_t iteration : checkpoints_in(dir)) there.push_back(fmt::format("{}", iteration));
      throw UserError("--ckpt-step {}: there is no {}; the checkpoints in {} are of iterations {}", *step,
                      folder.string(), dir.string(), there.empty() ? "none" : join(there, ", "));
    }
    return std::make_unique<RunCheckpoint>(folder);
  }
  if (last_complete) {
    std::vector<std::int64_t> iterations = checkpoints_in(dir);
    for (; !iterations.empty(); iterations.pop_back()) {
      try {
        auto checkpoint = std::make_unique<RunCheckpoint>(checkpoint_folder(dir, iterations.back()));
        checkpoint->verify();
        return checkpoint;
      } catch (const UserError& error) {
        fmt::print(stderr, "warning: {}; looking for an older checkpoint\n", error.what());
      }
    }
    return nullptr;
  }
  const std::optional<std::int64_t> latest = latest_checkpoint(dir);
  if (!latest) {
    const std::optional<std::filesystem::path> itself = checkpoint_in(dir);
    return itself ? std::make_unique<RunCheckpoint>(*itself) : nullptr;
  }
  const std::filesystem::path folder = checkpoint_folder(dir, *latest);
  if (!std::filesystem::exists(folder / manifest_name))
    throw UserError(
        "{} names iteration {}, but {} is not a complete checkpoint; --load-last-complete takes the newest that is, "
        "--ckpt-step N another",
        (dir / "latest_checkpointed_iteration.txt").string(), *latest, folder.string());
  return std::make_unique<RunCheckpoint>(folder);
}

}  // namespace weft
