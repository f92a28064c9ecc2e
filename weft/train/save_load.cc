#include "weft/train/save_load.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>
#include <span>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/parameter_list.h"

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

// "a, b, c and 4 more"
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 5;
  const std::span first(names.data(), std::min(names.size(), most));
  return names.size() <= most ? join(first, ", ")
                              : fmt::format("{} and {} more", join(first, ", "), names.size() - most);
}

// All ranks look for the parameters of the whole model, so that all come to the same end.
void check_names(const ModelConfig& config, const CheckpointReader& checkpoint, const LoadOptions& options) {
  const Strictness strictness = options.strictness;
  const auto is_one_of = [&](std::initializer_list<Strictness> some) {
    return std::find(some.begin(), some.end(), strictness) != some.end();
  };
  const auto warn = [&](const std::string& text) {
    if (options.warn) options.warn(text);
  };
  const std::string where = checkpoint.folder().string();
  std::set<ParameterIdentity> model;
  for (const ListedParameter& parameter : parameters_of(config)) model.insert(parameter.identity);
  std::vector<std::string> absent;
  for (const ParameterIdentity& identity : model)
    if (!checkpoint.has(Content::weight, identity)) absent.push_back(to_text(identity));
  if (!absent.empty()) {
    if (is_one_of({Strictness::assume_ok_unexpected, Strictness::raise_unexpected, Strictness::raise_all})) {
      const std::string pattern = checkpoint.pattern();
      throw UserError("{}: {} parameters of this model are not in the checkpoint, {} first; {}", where, absent.size(),
                      absent.front(),
                      pattern.empty() ? "--dist-ckpt-strictness log_unexpected leaves them their initial values"
                                      : fmt::format("it was saved with --pattern {}", pattern));
    }
    if (strictness != Strictness::ignore_all)
      warn(fmt::format("{}: {} parameters are not in the checkpoint and keep their initial values: {}", where,
                       absent.size(), some_of(absent)));
  }
  if (!is_one_of({Strictness::log_all, Strictness::raise_all})) return;
  const std::vector<std::string> others = checkpoint.others(model);
  if (others.empty()) return;
  const std::string text =
      fmt::format("{}: {} tensors of the checkpoint are not of this model: {}", where, others.size(), some_of(others));
  if (strictness == Strictness::raise_all)
    throw UserError("{}; --dist-ckpt-strictness raise_unexpected leaves them alone", text);
  warn(text);
}

// Before weights are changed.
void check_moments(const Session& session, const ModelParameters& parameters, const CheckpointReader& checkpoint) {
  const std::vector<ParameterTensor>& tensors = session.module().parameters;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (Content content : {Content::first_moment, Content::second_moment}) {
      if (!parameters.has(TensorId(static_cast<std::int64_t>(i)), content)) continue;
      for (const ParameterPart& part : tensors[i].parts) {
        if (checkpoint.has(content, part.identity) || !checkpoint.has(Content::weight, part.identity)) continue;
        const std::string problem = checkpoint.optimizer_problem();
        if (!problem.empty()) throw UserError("{}: {}", checkpoint.folder().string(), problem);
        throw UserError(
            "{}: the optimizer's state is not in the checkpoint (the {} of {}); load it with --no-load-optim or "
            "--finetune",
            checkpoint.folder().string(), name_of(content), to_text(part.identity));
      }
    }
  }
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

RunPosition load_checkpoint(Session& session, const CheckpointReader& checkpoint, const LoadOptions& options) {
  check_names(session.options().config, checkpoint, options);
  const ModelParameters& parameters = session.parameters();
  const bool optimizer = options.optimizer && checkpoint.of_run();
  if (optimizer) check_moments(session, parameters, checkpoint);
  const RunPosition position = checkpoint.position();

  session.set_parameters([&](const ParameterPart& part, HostTensor& values) {
    if (checkpoint.has(Content::weight, part.identity))
      checkpoint.read(Content::weight, part, values);
    else
      initialise(part, options.seed, values);
  });
  if (!optimizer) return position;
  const std::vector<ParameterTensor>& tensors = session.module().parameters;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorId id(static_cast<std::int64_t>(i));
    for (Content content : {Content::first_moment, Content::second_moment}) {
      if (!parameters.has(id, content)) continue;
      HostTensor values(parameters.type_of(id, content), tensors[i].shape.elements());
      for (const ParameterPart& part : tensors[i].parts)
        if (checkpoint.has(content, part.identity)) checkpoint.read(content, part, values);
      parameters.write(id, content, values);
    }
  }
  session.set_steps_taken(position.optimizer_steps);
  return position;
}

}  // namespace weft
