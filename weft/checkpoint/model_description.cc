#include "weft/checkpoint/model_description.h"

#include <array>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"

namespace weft {
namespace {

StoredType float_type(const Json& json, const std::string& of) {
  const std::optional<StoredType> type = stored_type_of(json.get<std::string>());
  if (!type || !is_float(*type)) throw UserError("the dtype of {} is {}", of, json.dump());
  return *type;
}

Json to_json(const HuggingFaceOrigin& origin) {
  Json json = {{"family", origin.family}};
  if (origin.form.experts != ExpertsForm::none) json["experts"] = name_of(origin.form.experts);
  if (origin.form.tied_as_head) json["tied_as_head"] = true;
  if (!origin.form.copies.empty()) json["copies"] = origin.form.copies;
  if (origin.type) json["dtype"] = name_of(*origin.type);
  for (const auto& [name, type] : origin.types) json["dtypes"][name] = name_of(type);
  return json;
}

HuggingFaceOrigin origin_of(const Json& json) {
  HuggingFaceOrigin origin;
  origin.family = json.at("family").get<std::string>();
  const std::string experts = json.value("experts", "none");
  for (const ExpertsForm form : {ExpertsForm::none, ExpertsForm::separate, ExpertsForm::fused})
    if (name_of(form) == experts) origin.form.experts = form;
  if (name_of(origin.form.experts) != experts) throw UserError("'experts' is \"{}\"; it is separate or fused", experts);
  origin.form.tied_as_head = json.value("tied_as_head", false);
  origin.form.copies = json.value("copies", std::vector<std::string>());
  if (json.contains("dtype")) origin.type = float_type(json["dtype"], "the tensors");
  if (json.contains("dtypes"))
    for (const auto& [name, type] : json["dtypes"].items()) origin.types[name] = float_type(type, name);
  return origin;
}

}  // namespace

Json to_json(const SavedRun& run) {
  const LogSums& log = run.position.unlogged;
  // Doubles come back with all their bits. Those that are not finite would not; the sums are of steps that were.
  const Json unlogged = {{"steps", log.steps},           {"loss", log.loss},       {"seconds", log.seconds},
                         {"mtp_losses", log.mtp_losses}, {"skipped", log.skipped}, {"not_finite", log.not_finite}};
  const LossTrend& trend = run.position.loss_trend;
  return {{"iteration", run.position.iteration},
          {"consumed_train_samples", run.position.consumed_samples},
          {"optimizer_steps", run.position.optimizer_steps},
          {"unlogged", unlogged},
          {"not_finite_in_a_row", run.position.not_finite_in_a_row},
          {"loss_trend", {{"mean", trend.mean}, {"known", trend.known}, {"high", trend.high}}},
          {"ranks", run.ranks},
          {"arguments", Json::parse(run.arguments)}};
}

SavedRun saved_run_of(const Json& json, const std::string& where) {
  try {
    LogSums log;
    if (json.contains("unlogged")) {
      const Json& sums = json["unlogged"];
      log = {sums.at("steps").get<std::int64_t>(),   sums.at("loss").get<double>(),
             sums.at("seconds").get<double>(),       sums.at("mtp_losses").get<std::vector<double>>(),
             sums.at("skipped").get<std::int64_t>(), sums.at("not_finite").get<std::int64_t>()};
    }
    LossTrend trend;  // older versions wrote neither this nor the next
    if (json.contains("loss_trend")) {
      const Json& losses = json["loss_trend"];
      trend = {losses.at("mean").get<double>(), losses.at("known").get<bool>(), losses.at("high").get<bool>()};
    }
    return {{json.at("iteration").get<std::int64_t>(), json.at("consumed_train_samples").get<std::int64_t>(),
             json.at("optimizer_steps").get<std::int64_t>(), log, json.value("not_finite_in_a_row", std::int64_t{0}),
             trend},
            json.value("ranks", std::int64_t{1}),
            json.contains("arguments") ? json["arguments"].dump() : "{}"};
  } catch (const Json::exception&) {
    throw UserError("{}: it does not say how far the run has come", where);
  }
}

Json to_json(const ModelDescription& description) {
  Json json = {{"config", to_json(description.config)}};
  if (description.compute) json["compute"] = name_of(*description.compute);
  if (description.hugging_face) json["hugging_face"] = to_json(*description.hugging_face);
  return json;
}

ModelDescription model_description_of(const Json& json, const std::string& where) {
  try {
    ModelDescription description;
    description.config = model_config_of(json.at("config"), where);
    if (json.contains("compute")) {
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
        if (json["compute"] == name_of(dtype)) description.compute = dtype;
      if (!description.compute) throw UserError("{}: 'compute' is {}", where, json["compute"].dump());
    }
    if (json.contains("hugging_face")) {
      try {
        description.hugging_face = origin_of(json["hugging_face"]);
      } catch (const UserError& error) {
        throw UserError("{}: hugging_face: {}", where, error.what());
      }
    }
    return description;
  } catch (const Json::exception& error) {
    throw UserError("{}: not the description of a model: {}", where, reason_of(error));
  }
}

}  // namespace weft
