#include "weft/checkpoint/megatron/megatron_checkpoint.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/megatron/key_variants.h"
#include "weft/checkpoint/megatron/megatron_keys.h"
#include "weft/checkpoint/megatron/part_reading.h"

namespace weft {
namespace {

constexpr std::string_view bucket_prefix = "optimizer.distributed.";  // of dp_reshardable state
constexpr Role vocabulary_roles[] = {Role::embedding, Role::head};

std::string_view without_prefixes(std::string_view name, std::string_view prefix) {
  while (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  return name;
}

// "optimizer.state.exp_avg.KEY" of "chained_1.optimizer.state.exp_avg.KEY", as a chain of optimizers writes it.
std::string_view without_chain(std::string_view name) {
  constexpr std::string_view chained = "chained_";
  if (!name.starts_with(chained)) return name;
  const std::size_t dot = name.find('.');
  std::int64_t number = 0;
  if (dot == std::string_view::npos || !parse_int(name.substr(chained.size(), dot - chained.size()), number))
    return name;
  return name.substr(dot + 1);
}

bool is_dropped(std::string_view name) {
  return name.ends_with("_extra_state") || name.find("._extra_state") != std::string_view::npos ||
         name.starts_with("rng_state") || name.starts_with("rerun_state");
}

// The first number "step" of a group of parameters, wherever the optimizers of a chain have theirs.
std::optional<std::int64_t> step_in(const Json& json) {
  if (json.is_object()) {
    const auto at = json.find("step");
    if (at != json.end() && at->is_number()) return static_cast<std::int64_t>(at->get<double>());
  }
  if (json.is_structured())
    for (const auto& item : json)
      if (const std::optional<std::int64_t> step = step_in(item)) return step;
  return std::nullopt;
}

std::optional<std::int64_t> count_in(const Json& json, const char* name) {
  const auto at = json.find(name);
  if (at == json.end() || !at->is_number_integer()) return std::nullopt;
  return at->get<std::int64_t>();
}

std::string text_in(const Json& json, const char* name) {
  const auto at = json.find(name);
  return at != json.end() && at->is_string() ? at->get<std::string>() : "";
}

std::string letters_of(const std::vector<PatternLayer>& layers) {
  std::string letters;
  for (const PatternLayer& layer : layers) letters += layer.letters();
  return letters;
}

}  // namespace

MegatronCheckpoint::MegatronCheckpoint(const std::filesystem::path& folder, const ModelConfig& config,
                                       MasterWeights masters)
    : files_(folder), masters_(masters), config_(config) {
  sort_keys();
  const std::vector<DiskTensor> tensors = recognise(config);
  for (const State state : {model_state, master_state, first_moment_state, second_moment_state})
    find_places(tensors, state);
  if (masters_ == MasterWeights::where_wider) require_all_masters();
}

void MegatronCheckpoint::add_key(State state, std::string_view key, const ShardedTensor& tensor) {
  const auto [at, is_new] = keys_[state].emplace(key, &tensor);
  if (is_new) return;
  if (state == master_state && masters_ == MasterWeights::never) {  // neither is asked for
    strangers_.push_back(tensor.name);
    return;
  }
  constexpr const char* what[states] = {"the model's tensor", "the master", "the first moment", "the second moment"};
  throw UserError(
      "{}: '{}' and '{}' would both be {} of '{}': two checkpoints are mixed; save it again with one of them",
      folder().string(), at->second->name, tensor.name, what[state], key);
}

// Which state each tensor is of, and of which key.
void MegatronCheckpoint::sort_keys() {
  constexpr std::pair<std::string_view, State> kinds[] = {{master_state_name, master_state},
                                                          {older_master_state_name, master_state},
                                                          {precise_master_state_name, master_state},
                                                          {first_moment_state_name, first_moment_state},
                                                          {second_moment_state_name, second_moment_state}};
  for (const ShardedTensor& tensor : files_.tensors()) {
    if (is_dropped(tensor.name)) continue;
    std::string_view name = without_chain(without_prefixes(tensor.name, "module."));
    if (!name.starts_with("optimizer.")) {
      add_key(model_state, name, tensor);
      continue;
    }
    bool known = false;
    for (const auto& [kind, state] : kinds) {
      const std::string prefix = fmt::format("{}{}.", state_prefix, kind);
      if (!name.starts_with(prefix)) continue;
      add_key(state, without_prefixes(name.substr(prefix.size()), "module."), tensor);
      known = true;
    }
    if (!known && !name.starts_with(bucket_prefix)) strangers_.push_back(tensor.name);
  }
}

// The form of which most keys are there.
std::vector<DiskTensor> MegatronCheckpoint::recognise(const ModelConfig& config) const {
  const Keys& keys = keys_[model_state];
  const Pattern pattern = parse_pattern(config.pattern);
  const std::vector<PatternLayer> main = main_layers(pattern), depth = depth_layers(pattern);
  bool stacked = false;
  MegatronForm base = megatron_form(config);
  for (const auto& [key, tensor] : keys) {
    constexpr std::string_view layers = "decoder.layers.";
    if (key.starts_with(layers) && (key[layers.size()] < '0' || key[layers.size()] > '9')) stacked = true;
    if (key.find(".transformer_layer.") != std::string::npos) base.names.transformer_depths = true;
  }
  std::vector<std::pair<std::vector<int>, std::vector<int>>> numbers = {{base.names.layers, base.names.depth_layers},
                                                                        {symbol_numbers(main), symbol_numbers(depth)},
                                                                        {block_numbers(main), block_numbers(depth)}};
  if (const std::string text = this->pattern(); !text.empty()) {
    try {
      const Pattern theirs = parse_pattern(text);
      const CanonicalForm form = canonical_form(theirs);
      if (letters_of(main_layers(theirs)) == letters_of(main) && letters_of(depth_layers(theirs)) == letters_of(depth))
        numbers.insert(numbers.begin() + 1, {form.layers, form.depth_layers});
    } catch (const UserError&) {  // a pattern of a kind that Weft does not have; its keys may fit nevertheless
    }
  }
  std::vector<DiskTensor> best;
  std::int64_t most = -1;
  std::string problem;
  for (const auto& [of_main, of_depth] : numbers) {
    for (const bool depths_of_their_own : {false, true}) {
      MegatronForm form = base;
      form.stacked = stacked;
      form.names.layers = of_main;
      form.names.depth_layers = depths_of_their_own ? symbol_numbers(depth) : of_depth;
      if (depths_of_their_own && form.names.depth_layers == of_depth) continue;
      std::vector<DiskTensor> tensors;
      try {
        tensors = megatron_tensors(config, form);
      } catch (const UserError& error) {
        if (problem.empty()) problem = error.what();
        continue;
      }
      const KeyVariants variants(tensors);
      const auto there = [&](const std::string& key) {
        const auto at = keys.find(key);
        return at == keys.end() ? nullptr : &at->second->shape;
      };
      const std::int64_t found = std::count_if(tensors.begin(), tensors.end(), [&](const DiskTensor& tensor) {
        return !variants.find(tensor, there).empty();
      });
      if (found <= most) continue;
      most = found;
      best = std::move(tensors);
    }
  }
  if (most < 0) throw UserError("{}: {}", folder().string(), problem);
  return best;
}

void MegatronCheckpoint::check_vocabulary(const ModelConfig& config, const std::string& key, std::int64_t rows) const {
  const std::int64_t ids = count_in(files_.args(), "vocab_size").value_or(0);
  if (rows < config.vocabulary || config.vocabulary < std::min(ids, rows))
    throw UserError("{}: '{}' has {} rows, {} of them for tokens, but the model has {} tokens; set --vocab-size",
                    folder().string(), key, rows, ids > 0 ? std::min(ids, rows) : rows, config.vocabulary);
}

void MegatronCheckpoint::find_places(const std::vector<DiskTensor>& tensors, State state) {
  const Keys& keys = keys_[state];
  const KeyVariants variants(tensors);
  const auto there = [&](const std::string& key) {
    const auto at = keys.find(key);
    return at == keys.end() ? nullptr : &at->second->shape;
  };
  for (const DiskTensor& tensor : tensors) {
    if (const auto two = variants.find_two(tensor, there))
      throw UserError("{}: '{}' and '{}' are spellings of one tensor; save the checkpoint again with one of them",
                      folder().string(), keys.find(two->first)->second->name, keys.find(two->second)->second->name);
    if (const auto one = variants.find_one_too_many(tensor, there))
      throw UserError("{}: there is '{}', but the model has {} experts; set --num-experts", folder().string(),
                      keys.find(*one)->second->name, config_.experts.experts);
    for (DiskTensor& found : variants.find(tensor, there)) {
      const ShardedTensor& stored = *keys.find(found.name)->second;
      const Role role = found.parts[0].identity.role;
      if (std::find(std::begin(vocabulary_roles), std::end(vocabulary_roles), role) != std::end(vocabulary_roles) &&
          stored.shape.dims() == 2 && stored.shape[1] == found.shape[1]) {
        check_vocabulary(config_, stored.name, stored.shape[0]);
        // Rows of the padding hold nothing, here as there; but where they are as many, they are kept, as all bits are.
        if (stored.shape != found.shape) {
          found.shape = stored.shape;
          found.parts[0].extent = {config_.vocabulary, stored.shape[1]};
        }
      }
      if (stored.shape != found.shape)
        throw UserError("{}: tensor '{}' has the shape {}, but the model asks for {}", folder().string(), stored.name,
                        to_text(stored.shape), to_text(found.shape));
      if (!is_float(stored.type))
        throw UserError("{}: tensor '{}' is {}; Weft reads F64, F32, F16 and BF16", folder().string(), stored.name,
                        name_of(stored.type));
      used_.insert(&stored);
      tensors_.push_back(std::move(found));
      for (const DiskPart& part : tensors_.back().parts) {
        std::vector<Place>& places = places_[state][part.identity];
        if (places.empty() || places.back().tensor != &stored) places.push_back({&stored, {}});
        places.back().parts.push_back(&part);
      }
    }
  }
}

// Without a master the optimizer would go on from a rounded weight, beside others that are exact.
void MegatronCheckpoint::require_all_masters() const {
  if (keys_[master_state].empty()) return;
  const auto has_moment = [&](const ParameterIdentity& identity) {
    return places_[first_moment_state].contains(identity) || places_[second_moment_state].contains(identity);
  };
  const bool moments = !places_[first_moment_state].empty();
  for (const auto& [identity, places] : places_[model_state]) {
    const ShardedTensor& tensor = *places[0].tensor;
    if (places_[master_state].contains(identity) || bits_of(tensor.type) >= bits_of(StoredType::f32)) continue;
    if (moments && !has_moment(identity)) continue;  // the optimizer does not train it
    throw UserError(
        "{}: there is no master of '{}' ({}, {}), though there are masters of other tensors: the checkpoint is not "
        "complete; --no-load-optim takes the model's tensors for all, and so does --load-main-params-from-ckpt of weft "
        "train",
        folder().string(), tensor.name, name_of(tensor.type), to_text(identity));
  }
}

RunPosition MegatronCheckpoint::position() const {
  const Json &args = files_.args(), &state = files_.shared_state();
  RunPosition position;
  position.iteration = files_.iteration().value_or(0);
  std::optional<std::int64_t> samples = count_in(args, "consumed_train_samples");
  if (const auto at = state.find("opt_param_scheduler"); !samples && at != state.end() && at->is_object())
    samples = count_in(*at, "num_steps");
  position.consumed_samples = samples ? *samples : position.iteration * count_in(args, "global_batch_size").value_or(0);
  const auto optimizer = state.find("optimizer");
  const std::optional<std::int64_t> steps = optimizer != state.end() ? step_in(*optimizer) : std::nullopt;
  position.optimizer_steps = steps.value_or(position.iteration);
  return position;
}

std::string MegatronCheckpoint::pattern() const {
  for (const char* name : {"hybrid_layer_pattern", "hybrid_override_pattern"})
    if (const std::string text = text_in(files_.args(), name); !text.empty()) return text;
  return "";
}

const std::vector<MegatronCheckpoint::Place>* MegatronCheckpoint::places_of(Content content,
                                                                            const ParameterIdentity& identity) const {
  const auto in = [&](State state) -> const std::vector<Place>* {
    const auto at = places_[state].find(identity);
    return at == places_[state].end() ? nullptr : &at->second;
  };
  switch (content) {
    case Content::weight: {
      const std::vector<Place>*const model = in(model_state), *const master = in(master_state);
      const bool wider = model != nullptr && master != nullptr &&
                         bits_of((*master)[0].tensor->type) > bits_of((*model)[0].tensor->type);
      return wider && masters_ == MasterWeights::where_wider ? master : model;
    }
    case Content::first_moment:
      return in(first_moment_state);
    case Content::second_moment:
      return in(second_moment_state);
    case Content::momentum:
    case Content::gradient:
      break;
  }
  return nullptr;
}

bool MegatronCheckpoint::has(Content content, const ParameterIdentity& identity) const {
  return places_of(content, identity) != nullptr;
}

std::string MegatronCheckpoint::optimizer_problem() const {
  std::string form;
  if (const auto at = files_.shared_state().find("content_metadata");
      at != files_.shared_state().end() && at->is_object())
    form = text_in(*at, "distrib_optim_sharding_type");
  const bool buckets = std::any_of(files_.tensors().begin(), files_.tensors().end(), [](const ShardedTensor& tensor) {
    return without_chain(tensor.name).starts_with(bucket_prefix);
  });
  if (buckets && (form.empty() || form.starts_with("fully_reshardable"))) form = "dp_reshardable";
  if (buckets || form.starts_with("dp_"))
    return fmt::format(
        "its optimizer's state has the form {}, buckets of the layout that wrote it, which Weft does not read; take "
        "the weights alone with --no-load-optim, or save it in Megatron with --dist-ckpt-optim-fully-reshardable",
        form);
  if (keys_[first_moment_state].empty() && !strangers_.empty())
    return fmt::format(
        "its optimizer's state is not Adam's: it has '{}' and no {}{}.*; take the weights alone with --no-load-optim",
        strangers_.front(), state_prefix, first_moment_state_name);
  return "";
}

void MegatronCheckpoint::each_place(Content content, const ParameterIdentity& identity, const Shape& shape,
                                    const VisitPlace& visit) const {
  const std::vector<Place>* const places = places_of(content, identity);
  if (places == nullptr)
    throw UserError("{}: there is no {} of {}", folder().string(), name_of(content), to_text(identity));
  for (const Place& place : *places) {
    for (const DiskPart* stored : place.parts) {
      if (stored->parameter != shape)
        throw UserError("{}: {} has the shape {} in '{}', but the model asks for {}", folder().string(),
                        to_text(identity), to_text(stored->parameter), place.tensor->name, to_text(shape));
      visit(place, *stored);
    }
  }
}

void MegatronCheckpoint::read(Content content, const ParameterPart& part, HostTensor& tensor) const {
  set_to_zero(part, tensor);  // rows of the vocabulary's padding
  each_place(content, part.identity, part.shape, [&](const Place& place, const DiskPart& stored) {
    read_part(files_, *place.tensor, stored, part, tensor);
  });
}

std::optional<StoredType> MegatronCheckpoint::type_of(Content content, const ParameterIdentity& identity) const {
  const std::vector<Place>* const places = places_of(content, identity);
  return places == nullptr ? std::nullopt : std::optional((*places)[0].tensor->type);
}

void MegatronCheckpoint::read(Content content, const ParameterIdentity& identity, const Shape& shape, StoredType type,
                              std::span<std::byte> out) const {
  const std::int64_t size = bits_of(type) / 8;
  std::fill(out.begin(), out.end(), std::byte{0});  // rows of the vocabulary's padding
  ParameterPart whole;
  whole.identity = identity;
  whole.shape = shape;
  whole.box = Box::whole(shape);
  each_place(content, identity, shape, [&](const Place& place, const DiskPart& stored) {
    const StoredType from_type = place.tensor->type;
    HostTensor values(from_type == StoredType::f64 ? DType::f64 : DType::f32, 0);
    read_part(files_, *place.tensor, stored, whole, [&](const std::byte* from, std::int64_t to, std::int64_t count) {
      std::byte* const place_in_out = out.data() + to * size;
      if (from_type == type) {
        std::copy_n(from, count * size, place_in_out);
        return;
      }
      values.bytes.resize(static_cast<std::size_t>(count) * size_of(values.dtype));
      const bool fits = convert(from_type, from, values.dtype, values.bytes.data(), count);
      WEFT_CHECK(fits, "{}: {} as {}", place.tensor->name, name_of(from_type), name_of(values.dtype));
      store(values.dtype, values.bytes.data(), type, place_in_out, count);
    });
  });
}

std::vector<CheckpointTensor> MegatronCheckpoint::tensors() const {
  std::vector<CheckpointTensor> all;
  for (const ShardedTensor& tensor : files_.tensors()) all.push_back({tensor.name, tensor.type, tensor.shape});
  return all;
}

std::vector<std::string> MegatronCheckpoint::others(const std::set<ParameterIdentity>&) const {
  std::vector<std::string> names = strangers_;
  for (const Keys& keys : keys_)
    for (const auto& [key, tensor] : keys)
      if (!used_.contains(tensor)) names.push_back(tensor->name);
  std::sort(names.begin(), names.end());
  return names;
}

void verify_tensors(const TorchDistCheckpoint& files, const std::function<void(std::size_t bytes)>& verified) {
  std::vector<std::byte> buffer;
  for (const ShardedTensor& tensor : files.tensors()) {
    for (const TensorChunk& chunk : tensor.chunks) {
      Box box = chunk.box;  // its first element: the whole chunk is checked when any of it is read
      if (box.extent.elements() == 0) continue;
      box.extent = {};
      for (int d = 0; d < tensor.shape.dims(); ++d) box.extent.append(1);
      buffer.resize(static_cast<std::size_t>(bits_of(tensor.type)) / 8);
      files.read(tensor, box, buffer);
      if (verified) verified(static_cast<std::size_t>(chunk.box.extent.elements()) * buffer.size());
    }
  }
}

}  // namespace weft
