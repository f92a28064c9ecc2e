// `weft inspect`: what a checkpoint holds, and where two differ.
#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <fnmatch.h>
#include <nlohmann/json.hpp>

#include "apps/weft/commands.h"
#include "apps/weft/inspect_diff.h"
#include "apps/weft/progress.h"
#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/inspect.h"
#include "weft/train/flags.h"
#include "weft/train/options.h"

namespace weft {
namespace {

struct Totals {
  std::int64_t tensors = 0, elements = 0, bytes = 0;
  void add(const ViewedTensor& tensor) {
    ++tensors;
    elements += tensor.shape.elements();
    bytes += bytes_of(tensor);
  }
};
using TotalsByName = std::map<std::string, Totals>;

struct Contents {
  Totals all;
  TotalsByName by_content, by_dtype;
  bool optimizer() const {
    return std::any_of(std::begin(optimizer_states), std::end(optimizer_states),
                       [&](Content state) { return by_content.contains(std::string(name_of(state))); }) ||
           by_content.contains("optimizer");
  }
};

Contents contents_of(const OpenedCheckpoint& checkpoint) {
  Contents contents;
  for (const ViewedTensor& tensor : checkpoint.tensors->tensors()) {
    contents.all.add(tensor);
    contents.by_content[content_of(checkpoint.form, tensor.name)].add(tensor);
    contents.by_dtype[std::string(name_of(tensor.type))].add(tensor);
  }
  return contents;
}

std::string shown_bytes(std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }
std::string counted(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// The sizes of parallel axes that are not 1, by the names that the arguments have for them.
std::vector<std::pair<std::string, std::string>> layout_of(const Json& arguments) {
  std::vector<std::pair<std::string, std::string>> layout;
  for (const auto& [name, value] : arguments.items()) {
    const bool size = name.ends_with("parallel-size") || name.ends_with("parallel_size");
    if (size && !value.is_null() && text_of(value) != "1") layout.emplace_back(name, text_of(value));
  }
  return layout;
}

// The flags that differ from the defaults of this Weft.
std::string flags_of(const Json& arguments) {
  TrainOptions options;
  FlagTable flags("weft train");
  add_train_flags(flags, options);
  std::map<std::string, std::string> standard;
  for (const Flag& flag : flags.flags())
    if (flag.kind != FlagKind::foreign && flag.show) standard[flag.key()] = flag.show();
  std::string text;
  for (const auto& [name, value] : arguments.items()) {
    const auto at = standard.find(name);
    if (at == standard.end() || at->second != text_of(value))
      text += fmt::format("{}--{} {}", text.empty() ? "" : " ", name, text_of(value));
  }
  return text;
}

Json to_json(const TotalsByName& totals) {
  Json json = Json::object();
  for (const auto& [name, t] : totals)
    json[name] = {{"tensors", t.tensors}, {"elements", t.elements}, {"bytes", t.bytes}};
  return json;
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}
Json or_null(const std::string& value) { return value.empty() ? Json(nullptr) : Json(value); }

std::string shown_totals(const TotalsByName& totals) {
  std::string text;
  for (const auto& [name, t] : totals)
    text +=
        fmt::format("{}{} {} ({})", text.empty() ? "" : ", ", name, shown_bytes(t.bytes), counted(t.tensors, "tensor"));
  return text;
}

void print_line(std::string_view label, const std::string& text) {
  if (!text.empty()) fmt::print("  {:<14} {}\n", label, text);
}

void print_checkpoint(const OpenedCheckpoint& checkpoint, const std::string& checksums) {
  const Contents contents = contents_of(checkpoint);
  fmt::print("{}: {}\n", checkpoint.folder.string(), name_of(checkpoint.form));
  const auto weights = contents.by_content.find("weight");
  std::vector<std::string> model;
  if (!checkpoint.family.empty()) model.push_back(checkpoint.family);
  if (!checkpoint.pattern.empty()) model.push_back(checkpoint.pattern);
  if (weights != contents.by_content.end())
    model.push_back(human_count(static_cast<double>(weights->second.elements)) + " parameters");
  if (!checkpoint.compute.empty()) model.push_back("computed in " + checkpoint.compute);
  print_line("model", join(model, ", "));
  print_line("not read", checkpoint.problem);
  std::vector<std::string> position;
  if (checkpoint.iteration) position.push_back(fmt::format("{}", *checkpoint.iteration));
  if (checkpoint.consumed_samples) position.push_back(counted(*checkpoint.consumed_samples, "sample") + " consumed");
  if (checkpoint.optimizer_steps) position.push_back(counted(*checkpoint.optimizer_steps, "optimizer step"));
  print_line("iteration", join(position, ", "));
  std::vector<std::string> layout;
  if (checkpoint.ranks) layout.push_back(counted(*checkpoint.ranks, "rank"));
  for (const auto& [name, size] : layout_of(checkpoint.arguments)) layout.push_back(name + " " + size);
  print_line("written by", join(layout, ", "));
  if (checkpoint.form != FolderForm::hugging_face)
    print_line("optimizer", contents.optimizer() ? "its state is there" : "without its state");
  print_line("tensors", fmt::format("{}, {}", contents.all.tensors, shown_bytes(contents.all.bytes)));
  print_line("by content", shown_totals(contents.by_content));
  print_line("by dtype", shown_totals(contents.by_dtype));
  std::int64_t bytes = 0;
  for (const auto& [name, size] : checkpoint.files) bytes += size;
  print_line("files", fmt::format("{}, {}", checkpoint.files.size(), shown_bytes(bytes)));
  print_line("checksums", checksums);
  if (checkpoint.form == FolderForm::weft)
    print_line("flags", flags_of(checkpoint.arguments));
  else if (!checkpoint.arguments.empty())
    print_line("arguments", fmt::format("{}, which --json lists", checkpoint.arguments.size()));
}

Json json_of(const OpenedCheckpoint& checkpoint, const std::optional<bool>& verified) {
  const Contents contents = contents_of(checkpoint);
  Json files = Json::array(), layout = Json::object();
  for (const auto& [name, bytes] : checkpoint.files) files.push_back({{"name", name}, {"bytes", bytes}});
  for (const auto& [name, size] : layout_of(checkpoint.arguments)) layout[name] = size;
  const auto weights = contents.by_content.find("weight");
  return {{"folder", checkpoint.folder.string()},
          {"form", id_of(checkpoint.form)},
          {"family", or_null(checkpoint.family)},
          {"pattern", or_null(checkpoint.pattern)},
          {"compute", or_null(checkpoint.compute)},
          {"parameters", weights == contents.by_content.end() ? 0 : weights->second.elements},
          {"problem", or_null(checkpoint.problem)},
          {"iteration", or_null(checkpoint.iteration)},
          {"consumed_samples", or_null(checkpoint.consumed_samples)},
          {"optimizer_steps", or_null(checkpoint.optimizer_steps)},
          {"ranks", or_null(checkpoint.ranks)},
          {"layout", layout},
          {"optimizer", contents.optimizer()},
          {"tensors", contents.all.tensors},
          {"bytes", contents.all.bytes},
          {"by_content", to_json(contents.by_content)},
          {"by_dtype", to_json(contents.by_dtype)},
          {"files", files},
          {"checksums_verified", or_null(verified)},
          {"arguments", checkpoint.arguments}};
}

void print_iterations(const std::string& dir, const SavedIterations& saved) {
  fmt::print("{}: {}\n", dir, counted(std::ssize(saved.iterations), "folder") + " of checkpoints");
  bool found = false;
  for (const SavedIteration& s : saved.iterations) {
    const bool named = saved.named == s.iteration && !s.name.ends_with(".tmp");
    found = found || named;
    fmt::print("  {:<20} {:>11}  {}{}{}\n", s.name, shown_bytes(s.bytes), s.complete ? "complete" : "not complete",
               named ? ", the one to go on from" : "", s.problem.empty() ? "" : ": " + s.problem);
  }
  if (!saved.tracker_problem.empty()) fmt::print("  {}\n", saved.tracker_problem);
  if (saved.named && !found)
    fmt::print("  latest_checkpointed_iteration.txt names iteration {}, which is not there\n", *saved.named);
  if (!saved.named && saved.tracker_problem.empty())
    fmt::print("  there is no latest_checkpointed_iteration.txt, so a run needs --ckpt-step to go on from one\n");
}

Json json_of(const std::string& dir, const SavedIterations& saved) {
  Json iterations = Json::array();
  for (const SavedIteration& s : saved.iterations)
    iterations.push_back({{"name", s.name},
                          {"iteration", s.iteration},
                          {"form", or_null(s.form)},
                          {"complete", s.complete},
                          {"problem", or_null(s.problem)},
                          {"bytes", s.bytes}});
  return {{"folder", dir},
          {"iterations", iterations},
          {"named", or_null(saved.named)},
          {"problem", or_null(saved.tracker_problem)}};
}

std::optional<bool> verify(const OpenedCheckpoint& checkpoint) {
  std::optional<Progress> progress;
  const auto total = static_cast<double>(std::max<std::int64_t>(bytes_of(checkpoint), 1));
  const bool verified = verify_checksums(checkpoint, [&](std::size_t bytes) {
    if (!progress) progress.emplace("verified", total);
    progress->at(static_cast<double>(bytes));
  });
  return verified;
}

int inspect_one(const std::string& dir, const InspectFlags& flags) {
  if (holds_iterations(dir)) {
    if (flags.verify || flags.tensors)
      throw UserError("{}: holds several checkpoints; name one of its folders iter_... for {}", dir,
                      flags.verify ? "--verify" : "--tensors");
    const SavedIterations saved = list_iterations(dir);
    if (flags.json)
      fmt::print("{}\n", json_of(dir, saved).dump());
    else
      print_iterations(dir, saved);
    return 0;
  }
  const OpenedCheckpoint checkpoint = open_checkpoint(dir);
  std::optional<bool> verified;
  if (flags.verify) verified = verify(checkpoint);
  std::vector<ViewedTensor> tensors;
  if (flags.tensors)
    for (const ViewedTensor& tensor : checkpoint.tensors->tensors())
      if (flags.wanted(tensor.name)) tensors.push_back(tensor);
  if (flags.json) {
    Json json = json_of(checkpoint, verified);
    if (flags.tensors) {
      Json list = Json::array();
      for (const ViewedTensor& tensor : tensors) list.push_back(to_json(tensor));
      json["tensor_list"] = list;
    }
    fmt::print("{}\n", json.dump());
    return 0;
  }
  print_checkpoint(checkpoint, checkpoint.form == FolderForm::hugging_face ? "the form has none"
                               : verified                                  ? "those of all tensors are right"
                                          : "not compared; --verify reads everything and compares them");
  std::size_t width = 0;
  for (const ViewedTensor& tensor : tensors) width = std::max(width, tensor.name.size());
  for (const ViewedTensor& tensor : tensors)
    fmt::print("{:<{}}  {:<5} {}\n", tensor.name, width, name_of(tensor.type), to_text(tensor.shape));
  return 0;
}

}  // namespace

bool InspectFlags::wanted(const std::string& name) const {
  return only.empty() || ::fnmatch(only.c_str(), name.c_str(), 0) == 0;
}

Json to_json(const ViewedTensor& tensor) {
  Json shape = Json::array();
  for (int d = 0; d < tensor.shape.dims(); ++d) shape.push_back(tensor.shape[d]);
  return {{"name", tensor.name}, {"dtype", name_of(tensor.type)}, {"shape", shape}};
}

int run_inspect_command(std::span<const std::string> words) {
  std::string dir;
  std::vector<std::string> pair;
  InspectFlags inspect;
  FlagTable flags("weft inspect",
                  "Describes a checkpoint: of Weft, of Megatron (torch_dist), or a Hugging Face folder. Of a folder of "
                  "--save it lists the checkpoints. With --diff: where two of them differ.");
  flags.positional("DIR", dir, "The checkpoint, or the folder of --save.", false);
  flags.further_words_mean("one checkpoint is inspected at a time; two are compared with --diff A B");
  flags.add("--json", inspect.json, "Prints JSON.");
  flags.add("--tensors", inspect.tensors,
            "Lists every tensor with its type and shape; with --diff also the equal ones.");
  flags.add("--only", inspect.only, "GLOB", "Lists and compares only tensors whose names match, such as '*.gate.*'.");
  flags.add("--verify", inspect.verify, "Reads all tensors and compares their checksums.");
  flags
      .add("--diff", pair, "A B",
           "Compares two checkpoints tensor by tensor. Exit code 0: equal, but for digits that a narrower type cannot "
           "hold; 1: not equal.")
      .takes_many();
  flags.apply(flags.scan(words));
  if (flags.help_wanted()) {
    fmt::print("{}", flags.help());
    return 0;
  }
  if (pair.empty() && dir.empty()) throw UserError("weft inspect: name a folder, or two with --diff A B");
  if (!inspect.only.empty() && pair.empty() && !inspect.tensors)
    throw UserError("--only {}: chooses what --tensors lists or --diff compares; add one of them", inspect.only);
  if (pair.empty()) return inspect_one(dir, inspect);
  if (!dir.empty()) throw UserError("weft inspect: either DIR or --diff A B; {} is one folder too many", dir);
  if (pair.size() != 2)
    throw UserError("--diff: names {} folder{}; it compares two, --diff A B", pair.size(), pair.size() == 1 ? "" : "s");
  if (inspect.verify) throw UserError("--verify: --diff reads all tensors anyway; drop the flag");
  return inspect_diff(pair[0], pair[1], inspect);
}

}  // namespace weft
