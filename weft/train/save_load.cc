#include "weft/train/save_load.h"

#include <algorithm>
#include <set>
#include <span>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/parameter_list.h"

namespace weft {
namespace {

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
    if (is_one_of({Strictness::log_unexpected, Strictness::log_all}))
      warn(fmt::format("{}: {} parameters are not in the checkpoint and keep their initial values: {}", where,
                       absent.size(), some_of(absent)));
  }
  if (strictness == Strictness::return_unexpected && options.differ) options.differ({absent, {}});
  if (!is_one_of({Strictness::log_all, Strictness::raise_all, Strictness::return_all})) return;
  const std::vector<std::string> others = checkpoint.others(model);
  if (strictness == Strictness::return_all) {
    if (options.differ) options.differ({absent, others});
    return;
  }
  if (others.empty()) return;
  const std::string text =
      fmt::format("{}: {} tensors of the checkpoint are not of this model: {}", where, others.size(), some_of(others));
  if (strictness == Strictness::raise_all)
    throw UserError("{}; --dist-ckpt-strictness raise_unexpected leaves them alone", text);
  warn(text);
}

// Of which optimizer's flags a state is, and of which these are.
std::string_view flags_of(Content state) {
  return state == Content::momentum ? "--optimizer sgd with --sgd-momentum above 0" : "--optimizer adam";
}
std::string_view flags_of(const OptimizerSpec& optimizer) {
  if (optimizer.kind == OptimizerKind::adam) return "--optimizer adam";
  return optimizer.momentum > 0 ? "--optimizer sgd" : "--optimizer sgd --sgd-momentum 0";
}

// All ranks look at the whole model here, too.
void check_optimizer(const Session& session, const CheckpointReader& checkpoint) {
  const OptimizerSpec& optimizer = session.options().optimizer;
  const std::span<const Content> kept = states_of(optimizer);
  for (const Content state : optimizer_states) {
    if (std::find(kept.begin(), kept.end(), state) != kept.end()) continue;
    for (const ListedParameter& parameter : parameters_of(session.options().config))
      if (checkpoint.has(state, parameter.identity))
        throw UserError(
            "{}: the optimizer's state in it is that of {} (the {} of {}), and this run has {}: choose the same "
            "optimizer, or load the checkpoint with --no-load-optim or --finetune",
            checkpoint.folder().string(), flags_of(state), in_words(state), to_text(parameter.identity),
            flags_of(optimizer));
  }
}

// Before weights are changed.
void check_states(const Session& session, const ModelParameters& parameters, const CheckpointReader& checkpoint) {
  check_optimizer(session, checkpoint);
  const std::vector<ParameterTensor>& tensors = session.module().parameters;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (const Content content : optimizer_states) {
      if (!parameters.has(TensorId(static_cast<std::int64_t>(i)), content)) continue;
      for (const ParameterPart& part : tensors[i].parts) {
        if (checkpoint.has(content, part.identity) || !checkpoint.has(Content::weight, part.identity)) continue;
        const std::string problem = checkpoint.optimizer_problem();
        if (!problem.empty()) throw UserError("{}: {}", checkpoint.folder().string(), problem);
        throw UserError(
            "{}: the optimizer's state is not in the checkpoint (the {} of {}); load it with --no-load-optim or "
            "--finetune",
            checkpoint.folder().string(), in_words(content), to_text(part.identity));
      }
    }
  }
}

}  // namespace

RunPosition load_checkpoint(Session& session, const CheckpointReader& checkpoint, const LoadOptions& options) {
  check_names(session.options().config, checkpoint, options);
  const ModelParameters& parameters = session.parameters();
  const bool optimizer = options.optimizer && checkpoint.of_run();
  if (optimizer) check_states(session, parameters, checkpoint);
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
    for (const Content content : optimizer_states) {
      if (!parameters.has(id, content)) continue;
      for (const ParameterPart& part : tensors[i].parts) {
        if (!checkpoint.has(content, part.identity)) continue;
        parameters.write(id, content, part, [&](const ParameterPart& piece, HostTensor& values) {
          checkpoint.read(content, piece, values);
        });
      }
    }
  }
  session.set_steps_taken(position.optimizer_steps);
  return position;
}

}  // namespace weft
