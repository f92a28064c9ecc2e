#include "apps/weft/inspect_diff.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/weft/progress.h"
#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/compare.h"
#include "weft/checkpoint/inspect.h"
#include "weft/checkpoint/megatron/megatron_checkpoint.h"

namespace weft {
namespace {

// By which names two checkpoints are compared.
struct Pair {
  std::unique_ptr<MegatronCheckpoint> megatron;  // of the one that is compared by parameter
  std::unique_ptr<TensorView> first, second;     // null: the checkpoint's own
  std::string by;
  bool weights_only = false;  // one of them has nothing else
};

bool same_names(const TensorView& a, const TensorView& b) {
  return std::equal(a.tensors().begin(), a.tensors().end(), b.tensors().begin(), b.tensors().end(),
                    [](const ViewedTensor& x, const ViewedTensor& y) { return x.name == y.name; });
}

std::unique_ptr<TensorView> parameters_of(const OpenedCheckpoint& checkpoint) {
  if (!checkpoint.weights) throw UserError(checkpoint.problem);
  return view_of_parameters(*checkpoint.weights);
}

ModelConfig config_of(const OpenedCheckpoint& checkpoint) {
  if (checkpoint.form == FolderForm::weft) return checkpoint.run->description().config;
  if (!checkpoint.weights) throw UserError(checkpoint.problem);
  return checkpoint.weights->model().config;
}

Pair pair_of(const OpenedCheckpoint& a, const OpenedCheckpoint& b) {
  Pair pair;
  pair.by = a.form == FolderForm::megatron ? "key" : "name";
  if (a.form == b.form) {
    // The same model may have its experts in other tensors.
    if (a.form != FolderForm::hugging_face || !a.weights || !b.weights || same_names(*a.tensors, *b.tensors))
      return pair;
  }
  pair.by = "parameter";
  pair.weights_only = a.form == FolderForm::hugging_face || b.form == FolderForm::hugging_face;
  const auto view = [&](const OpenedCheckpoint& one, const OpenedCheckpoint& other) -> std::unique_ptr<TensorView> {
    if (one.form == FolderForm::weft) return nullptr;
    if (one.form == FolderForm::hugging_face) return parameters_of(one);
    const ModelConfig config = config_of(other);  // its keys are those of this model
    pair.megatron = std::make_unique<MegatronCheckpoint>(one.folder, config, MasterWeights::where_wider);
    return view_of_parameters(*pair.megatron, config);
  };
  pair.first = view(a, b);
  pair.second = view(b, a);
  return pair;
}

std::string described(const OpenedCheckpoint& checkpoint) {
  return fmt::format("{}: {}{}", checkpoint.folder.string(), name_of(checkpoint.form),
                     checkpoint.iteration ? fmt::format(", iteration {}", *checkpoint.iteration) : "");
}

std::string shown(const ViewedTensor& tensor) {
  return fmt::format("{} {}", name_of(tensor.type), to_text(tensor.shape));
}

std::string detail_of(const TensorComparison& t) {
  switch (t.verdict) {
    case TensorVerdict::missing:
      return shown(t.first);
    case TensorVerdict::unexpected:
      return shown(t.second);
    case TensorVerdict::equal:
      return shown(t.first);
    case TensorVerdict::different:
      break;
    default:
      return fmt::format("{} and {}", shown(t.first), shown(t.second));
  }
  std::string text = t.first.type == t.second.type ? shown(t.first)
                                                   : fmt::format("{} and {} {}", name_of(t.first.type),
                                                                 name_of(t.second.type), to_text(t.first.shape));
  text += fmt::format(": {} of {} elements", t.differing, t.first.shape.elements());
  if (t.differing > t.not_finite && is_float(t.first.type))
    text += fmt::format(", by at most {:.3g}, relatively {:.3g}", t.max_absolute, t.max_relative);
  if (t.not_finite > 0) text += fmt::format(", {} of them not finite in one", t.not_finite);
  return text;
}

constexpr TensorVerdict verdicts[] = {TensorVerdict::equal,     TensorVerdict::equal_value, TensorVerdict::rounded,
                                      TensorVerdict::different, TensorVerdict::other_type,  TensorVerdict::other_shape,
                                      TensorVerdict::missing,   TensorVerdict::unexpected};

std::string key_of(TensorVerdict verdict) {
  std::string key(name_of(verdict));
  std::replace(key.begin(), key.end(), ' ', '_');
  return key;
}

Json to_json(const TensorComparison& t) {
  Json json = {{"name", t.name}, {"verdict", key_of(t.verdict)}};
  for (const auto& [key, tensor] : {std::pair("first", &t.first), std::pair("second", &t.second)}) {
    if (tensor->name.empty()) continue;
    json[key] = to_json(*tensor);
    json[key].erase("name");
  }
  if (t.verdict == TensorVerdict::different) {
    json["elements"] = t.first.shape.elements();
    json["differing"] = t.differing;
    json["not_finite"] = t.not_finite;
    json["max_absolute"] = t.max_absolute;
    json["max_relative"] = t.max_relative;
  }
  return json;
}

}  // namespace

int inspect_diff(const std::string& first, const std::string& second, const InspectFlags& flags) {
  const OpenedCheckpoint a = open_checkpoint(first), b = open_checkpoint(second);
  const Pair pair = pair_of(a, b);
  const TensorView &view_a = pair.first ? *pair.first : *a.tensors, &view_b = pair.second ? *pair.second : *b.tensors;
  std::int64_t left_out = 0, total = 0;
  CompareOptions options;
  options.wanted = [&](const std::string& name) {
    if (!flags.wanted(name)) return false;
    const bool compared = !pair.weights_only || name.starts_with("weight/");
    left_out += !compared;
    return compared;
  };
  for (const ViewedTensor& tensor : view_a.tensors()) total += options.wanted(tensor.name) ? bytes_of(tensor) : 0;
  left_out = 0;
  std::optional<Progress> progress;
  options.progress = [&](std::size_t bytes) {
    if (!progress) progress.emplace("compared", static_cast<double>(std::max<std::int64_t>(total, 1)));
    progress->at(static_cast<double>(bytes));
  };
  const std::vector<TensorComparison> results = compare(view_a, view_b, options);
  progress.reset();
  if (results.empty())
    throw UserError("--diff: there is nothing to compare{}",
                    flags.only.empty() ? "" : fmt::format(": no tensor matches --only {}", flags.only));

  std::map<TensorVerdict, std::int64_t> counts;
  for (const TensorComparison& t : results) ++counts[t.verdict];
  const bool equal = std::all_of(results.begin(), results.end(), [](const auto& t) { return is_equal(t.verdict); });
  const auto listed = [&](const TensorComparison& t) { return flags.tensors || !is_equal(t.verdict); };
  if (flags.json) {
    Json tensors = Json::array(), summary = Json::object();
    for (const TensorComparison& t : results)
      if (listed(t)) tensors.push_back(to_json(t));
    for (const TensorVerdict verdict : verdicts) summary[key_of(verdict)] = counts[verdict];
    const auto side = [](const OpenedCheckpoint& c) {
      return Json{{"folder", c.folder.string()},
                  {"form", id_of(c.form)},
                  {"iteration", c.iteration ? Json(*c.iteration) : Json(nullptr)}};
    };
    const Json json = {{"equal", equal},    {"first", side(a)},         {"second", side(b)}, {"compared_by", pair.by},
                       {"counts", summary}, {"not_compared", left_out}, {"tensors", tensors}};
    fmt::print("{}\n", json.dump());
    return equal ? 0 : 1;
  }
  fmt::print("A  {}\nB  {}\n", described(a), described(b));
  std::size_t width = 0;
  for (const TensorComparison& t : results)
    if (listed(t)) width = std::max(width, t.name.size());
  for (const TensorComparison& t : results) {
    if (!listed(t)) continue;
    const std::string verdict = t.verdict == TensorVerdict::missing      ? "only in A"
                                : t.verdict == TensorVerdict::unexpected ? "only in B"
                                                                         : std::string(name_of(t.verdict));
    fmt::print("{:<20} {:<{}}  {}\n", verdict, t.name, width, detail_of(t));
  }
  std::string summary;
  for (const TensorVerdict verdict : verdicts)
    if (counts[verdict] > 0 || verdict == TensorVerdict::equal)
      summary += fmt::format("{}{} {}", summary.empty() ? "" : ", ", counts[verdict], name_of(verdict));
  fmt::print("{} tensors by {}: {}\n", results.size(), pair.by, summary);
  if (left_out > 0)
    fmt::print("{} tensors that are not weights were not compared: a Hugging Face folder has none\n", left_out);
  return equal ? 0 : 1;
}

}  // namespace weft
