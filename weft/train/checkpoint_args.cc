#include "weft/train/checkpoint_args.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/find_checkpoint.h"

namespace weft {
namespace {

using Form = FlagValue::Form;

bool names_tokenizer(std::string_view flag) {
  for (const char* name : {"--tokenizer-type", "--tokenizer-model", "--vocab-file", "--merge-file", "--vocab-size",
                           "--tiktoken-pattern", "--tiktoken-num-special-tokens", "--special-tokens"})
    if (flag == name) return true;
  return false;
}

// Of Weft's flags those that make the model, but for the ones that --pattern replaces.
bool makes_model(const Flag& flag) {
  for (const char* name : {"--num-layers", "--multi-latent-attention", "--experimental-attention-variant",
                           "--linear-attention-freq", "--moe-layer-freq", "--mtp-num-layers"})
    if (flag.name == name) return false;
  if (names_tokenizer(flag.name) || flag.name == "--make-vocab-size-divisible-by") return true;
  for (const char* section :
       {"Model", "Attention", "Multi-latent attention", "Experts", "Recurrent layers", "Balance of experts"})
    if (flag.section == section) return true;
  return false;
}

FlagValue value_of(const Flag& flag, const std::string& text) {
  if (flag.kind == FlagKind::toggle) return {Form::boolean, {text}};
  if (flag.kind == FlagKind::list) return {Form::words, split(text, ' ')};
  return {Form::words, {text}};
}

}  // namespace

std::vector<CheckpointArg> model_flags_of_weft(const Json& arguments, const std::string& folder) {
  TrainOptions options;
  FlagTable flags("");
  add_train_flags(flags, options);
  std::vector<CheckpointArg> args;
  const auto text_of = [&](const std::string& name) {
    const auto at = arguments.find(name);
    return at != arguments.end() && at->is_string() ? at->get<std::string>() : "";
  };
  const bool of_hugging_face = arguments.empty() || !text_of("hf").empty();
  if (of_hugging_face) args.push_back({"its manifest", "--hf", {Form::words, {folder}}});
  for (const Flag& flag : flags.flags()) {
    if (flag.kind == FlagKind::foreign || !makes_model(flag) || !arguments.contains(flag.key())) continue;
    if (of_hugging_face && flag.section != "Balance of experts") continue;
    const std::string text = text_of(flag.key());
    args.push_back({flag.key(), flag.name, value_of(flag, text), text == flag.show()});
  }
  return args;
}

namespace {

// The checkpoint's flags, as if a user had written them.
struct FlagOfCheckpoint {
  FlagAssignment assignment;
  bool is_default = false;
};
std::vector<FlagOfCheckpoint> flags_in(const CheckpointPlace& place) {
  const std::string where = place.folder.string();
  const Json arguments = arguments_of(place);
  const bool is_weft = place.form == CheckpointForm::weft;
  if (arguments.empty() && !is_weft)
    throw UserError("{} does not record the flags it was made with; describe the model by flags", where);
  std::vector<FlagOfCheckpoint> found;
  try {
    for (const CheckpointArg& arg :
         is_weft ? model_flags_of_weft(arguments, where) : model_flags_of_megatron(arguments))
      found.push_back({{arg.flag,
                        arg.value,
                        {.source = FlagOrigin::Source::checkpoint, .where = fmt::format("{} ({})", where, arg.name)}},
                       arg.is_default});
  } catch (const UserError& error) {
    throw UserError("{}: {}", where, error.what());
  }
  return found;
}

std::string shown(const FlagAssignment& assignment) {
  return fmt::format("{} {}: {}", assignment.spelling, join(assignment.value.words, " "), assignment.origin.where);
}

}  // namespace

TrainOptions options_of_megatron(const CheckpointPlace& place) {
  TrainOptions options;
  FlagTable flags("");
  add_train_flags(flags, options);
  std::vector<std::string> problems;
  for (const auto& [assignment, is_default] : flags_in(place)) {
    try {
      flags.apply({&assignment, 1});
    } catch (const UserError& error) {
      problems.push_back(fmt::format("{}: {}", shown(assignment), error.what()));
    }
  }
  throw_problems(problems);
  resolve(options);
  check_config(model_config(options));
  return options;
}

std::string flags_of_run(TrainOptions options) {
  FlagTable flags("weft train");
  add_train_flags(flags, options);
  nlohmann::json arguments = nlohmann::json::object();
  for (const Flag& flag : flags.flags())
    if (flag.kind != FlagKind::foreign && flag.show) arguments[flag.key()] = flag.show();
  return arguments.dump();
}

void take_checkpoint_args(FlagTable& flags, const TrainOptions& options) {
  const CheckpointOptions& checkpoint = options.checkpoint;
  if (!checkpoint.use_checkpoint_args || checkpoint.load.empty()) return;
  std::string why = fmt::format("there is no checkpoint in {}", checkpoint.load);
  const std::optional<CheckpointPlace> place =
      find_checkpoint(checkpoint.load, checkpoint.ckpt_step > 0 ? std::optional(checkpoint.ckpt_step) : std::nullopt,
                      // What it says of the model has been read then; its tensors are verified once, before they are.
                      checkpoint.load_last_complete ? WhichCheckpoint::newest_open : WhichCheckpoint::tracked,
                      [&](const std::string& text) { why = text; });
  if (!place) {
    flags.note(fmt::format("--use-checkpoint-args: {}; the flags make the model", why));
    return;
  }
  const std::string where = place->folder.string();
  if (!options.model.hf.empty())
    throw UserError("--hf {} and --use-checkpoint-args ({}) both decide the model; drop one of the two",
                    options.model.hf, where);
  TrainOptions theirs;
  FlagTable table("");
  add_train_flags(table, theirs);
  std::vector<std::string> problems, taken;
  const bool has_tokenizer = flags.is_set("--tokenizer-model") || flags.is_set("--vocab-file");
  for (const auto& [assignment, is_default] : flags_in(*place)) {
    if (has_tokenizer && names_tokenizer(assignment.spelling)) continue;  // its file may have moved
    try {
      if (!is_default) table.apply({&assignment, 1});
    } catch (const UserError& error) {
      problems.push_back(fmt::format("{}: {}", shown(assignment), error.what()));
      continue;
    }
    const std::string value = table.flag(assignment.spelling).show(), here = flags.flag(assignment.spelling).show();
    if (value == here) continue;
    if (flags.is_set(assignment.spelling)) {
      problems.push_back(fmt::format("{} {}: {} has {}; drop the flag, or --use-checkpoint-args", assignment.spelling,
                                     here, assignment.origin.where, value.empty() ? "none" : value));
      continue;
    }
    flags.apply({&assignment, 1});
    taken.push_back(fmt::format("{} {}", assignment.spelling, value));
  }
  throw_problems(problems);
  flags.note(fmt::format("--use-checkpoint-args: {} gives {}", where,
                         taken.empty() ? "nothing that differs from the flags" : join(taken, ", ")));
}

}  // namespace weft
