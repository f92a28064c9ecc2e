// `weft convert`: a model from one format to another.
#include <array>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/weft/commands.h"
#include "apps/weft/progress.h"
#include "weft/base/error.h"
#include "weft/base/json.h"
#include "weft/base/text.h"
#include "weft/checkpoint/convert.h"
#include "weft/checkpoint/megatron/megatron_source.h"
#include "weft/train/checkpoint_args.h"
#include "weft/train/flags.h"

namespace weft {
namespace {

// "5GB", "500MB" as Hugging Face has them, "2GiB", "1000": bytes.
std::int64_t parse_shard_size(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, std::int64_t>, 8> units = {{{"KiB", 1 << 10},
                                                                               {"MiB", 1 << 20},
                                                                               {"GiB", 1 << 30},
                                                                               {"KB", 1'000},
                                                                               {"MB", 1'000'000},
                                                                               {"GB", 1'000'000'000},
                                                                               {"B", 1},
                                                                               {"", 1}}};
  for (const auto& [name, factor] : units) {
    if (!text.ends_with(name)) continue;
    std::int64_t number = 0;
    const std::string_view digits = std::string_view(text).substr(0, text.size() - name.size());
    if (!parse_int(digits, number) || number < 1 || number > (std::int64_t{1} << 50) / factor) break;
    return number * factor;
  }
  throw UserError("--max-shard-size {} is not a size; write 5GB, 500MB or 2GiB", text);
}

void report(const ConvertOptions& options, const ConvertResult& result, bool json) {
  if (json) {
    const Json summary = {
        {"out", options.out.string()},        {"family", result.family},         {"pattern", result.pattern},
        {"experts", name_of(result.experts)}, {"parameters", result.parameters}, {"tensors_in", result.tensors_in},
        {"tensors_out", result.tensors_out},  {"files", result.files},           {"bytes", result.bytes}};
    fmt::print("{}\n", summary.dump());
    return;
  }
  fmt::print("{}: {}{}{}\n", options.out.string(), result.family, result.family.empty() ? "" : " ", result.pattern);
  fmt::print("{} parameters, {} tensors from {}, {} in {} file{}\n",
             human_count(static_cast<double>(result.parameters)), result.tensors_out, result.tensors_in,
             human_bytes(static_cast<double>(result.bytes)), result.files, result.files == 1 ? "" : "s");
}

// The model is that of the checkpoint's args, unless Weft wrote the checkpoint and recorded more.
std::unique_ptr<ModelSource> open_megatron_in(const std::filesystem::path& folder, bool optimizer) {
  std::string untracked;
  const std::optional<CheckpointPlace> place = find_checkpoint(
      folder, {}, WhichCheckpoint::tracked,
      [&](const std::string&) { untracked = "; name a folder in it: --in " + (folder / "iter_NNNNNNN").string(); });
  if (!place || place->form != CheckpointForm::megatron)
    throw UserError("--in {}: there is no checkpoint of Megatron's{}", folder.string(),
                    place ? "; it is Weft's, read with --from weft" : untracked);
  // Masters are the optimizer's, as for --load.
  const MasterWeights masters = optimizer ? MasterWeights::where_wider : MasterWeights::never;
  if (std::unique_ptr<ModelSource> source = open_megatron_of_weft(*place, masters)) return source;
  const TrainOptions options = options_of_megatron(*place);
  return open_megatron(*place, model_config(options), flags_of_run(options), masters);
}

}  // namespace

int run_convert_command(std::span<const std::string> words) {
  std::string in, out, shard_size = "50GB";
  std::optional<CheckpointFormat> from, to;
  std::optional<ExpertsForm> experts;
  bool json = false, no_load_optim = false;
  ConvertOptions options;
  FlagTable flags("weft convert",
                  "Writes a model in another format. Elements keep their bits, so that the way back gives the same "
                  "tensors. From weft to weft, it joins the files of a run's ranks.");
  flags.further_words_mean("the folders are --in DIR and --out DIR");
  using Format = std::optional<CheckpointFormat>;
  const std::vector<std::pair<std::string, Format>> formats = {{"hf", CheckpointFormat::hugging_face},
                                                               {"weft", CheckpointFormat::weft},
                                                               {"megatron", CheckpointFormat::megatron}};
  flags.choice(
      "--from", from, formats,
      "What is read: a Hugging Face folder, or a checkpoint of Weft or Megatron (torch_dist): of a model or of a "
      "run, the last in its folder.");
  flags.choice("--to", to, formats, "What is written.");
  flags.add("--in", in, "DIR", "The folder to read.");
  flags.add("--out", out, "DIR", "The folder to make; it must not exist, or be empty.");
  flags.choice("--experts", experts,
               std::vector<std::pair<std::string, std::optional<ExpertsForm>>>{
                   {"as-read", std::nullopt}, {"separate", ExpertsForm::separate}, {"fused", ExpertsForm::fused}},
               "Of a Hugging Face folder that is written: a tensor for every expert's matrix, or one for all experts "
               "of a layer.");
  flags
      .add("--hf-family", options.hugging_face.family, "NAME",
           "Of a Hugging Face folder that is written, where the model does not come from one: its family.")
      .standard("the only one that has such models");
  flags.choice("--hf-dtype", options.hugging_face.type,
               std::vector<std::pair<std::string, std::optional<StoredType>>>{{"as-is", std::nullopt},
                                                                              {"f32", StoredType::f32},
                                                                              {"bf16", StoredType::bf16},
                                                                              {"f16", StoredType::f16},
                                                                              {"f64", StoredType::f64}},
               "Of the tensors of a Hugging Face folder that is written. as-is: as they were, or of a run that did not "
               "begin with such a folder what it computed in.");
  flags.custom(
      "--max-shard-size", "SIZE",
      [&](const std::string& text) {
        options.max_shard_bytes = parse_shard_size(text);
        shard_size = text;
      },
      [&] { return shard_size; }, "Files are not larger, unless one tensor is: 5GB, 500MB, 2GiB.");
  flags.add("--megatron-transformer", options.megatron_transformer,
            "Of a Megatron checkpoint that is written: keys and args of a transformer instead of a hybrid model. "
            "Layers that are "
            "all alike are in one tensor, [layers, ...], others have a key each, as in Megatron.");
  flags.add("--megatron-stacked-layers", options.megatron_stacked_layers,
            "As --megatron-transformer, but layers that are not all alike are an error.");
  flags.add(
      "--no-load-optim", no_load_optim,
      "Take the weights without the optimizer's state: of a Megatron checkpoint those of the model's tensors, even "
      "where masters with more bits are kept.");
  flags.add("--json", json, "Prints a summary as JSON.");
  flags.apply(flags.scan(words));
  if (flags.help_wanted()) {
    fmt::print("{}", flags.help());
    return 0;
  }
  if (!from || !to) throw UserError("weft convert: name both formats: --from hf --to weft, or --from weft --to hf");
  if (in.empty() || out.empty()) throw UserError("weft convert: name both folders: --in DIR --out DIR");
  if (experts && to == CheckpointFormat::weft)
    throw UserError("--experts {}: a Weft checkpoint has a tensor for each matrix of each expert; drop the flag",
                    name_of(*experts));
  if ((options.hugging_face.type || !options.hugging_face.family.empty()) && to != CheckpointFormat::hugging_face)
    throw UserError("{}: only a Hugging Face folder that is written has one; drop the flag",
                    options.hugging_face.type ? "--hf-dtype" : "--hf-family");
  if (experts && to == CheckpointFormat::megatron)
    throw UserError("--experts {}: a Megatron checkpoint has the experts of a layer in one tensor; drop the flag",
                    name_of(*experts));
  if ((options.megatron_stacked_layers || options.megatron_transformer) && to != CheckpointFormat::megatron)
    throw UserError("{} is for --to megatron; drop the flag",
                    options.megatron_stacked_layers ? "--megatron-stacked-layers" : "--megatron-transformer");
  if (no_load_optim && from == CheckpointFormat::hugging_face)
    throw UserError("--no-load-optim: a Hugging Face folder has no optimizer's state; drop the flag");
  if (no_load_optim && from == CheckpointFormat::weft && to == CheckpointFormat::hugging_face)
    throw UserError("--no-load-optim: a Hugging Face folder gets no optimizer's state; drop the flag");
  options.optimizer = !no_load_optim;
  options.from = *from;
  options.to = *to;
  options.in = in;
  options.out = out;
  options.hugging_face.experts = experts;
  std::optional<Progress> progress;
  options.progress = [&](std::size_t bytes, std::size_t total) {
    if (!progress) progress.emplace("written", static_cast<double>(total));
    progress->at(static_cast<double>(bytes));
  };
  const ConvertResult result = from == CheckpointFormat::megatron
                                   ? convert_checkpoint(*open_megatron_in(options.in, options.optimizer), options)
                                   : convert_checkpoint(options);
  progress.reset();
  report(options, result, json);
  return 0;
}

}  // namespace weft
