#include "weft/checkpoint/convert.h"

#include <cstring>
#include <map>
#include <memory>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/checkpoint/canonical_names.h"
#include "weft/checkpoint/new_folder.h"
#include "weft/checkpoint/weft_checkpoint.h"

namespace weft {
namespace {

// What a folder gives, whatever its format.
struct Source {
  const HuggingFaceModel& model;
  const StoredWeights& stored;
  std::size_t tensors;  // parameters' in this format
  std::vector<const TensorEntry*> others;
};

// The type that holds every value of both.
StoredType wider(StoredType a, StoredType b) {
  if (a == b) return a;
  if (a == StoredType::f64 || b == StoredType::f64) return StoredType::f64;
  return StoredType::f32;  // also for BF16 with F16: neither holds the other
}

StoredType type_for(const DiskTensor& tensor, const StoredWeights& stored, bool may_widen) {
  const StoredType first = stored.type_of(tensor.parts[0].identity);
  StoredType type = first;
  for (const DiskPart& part : tensor.parts) type = wider(type, stored.type_of(part.identity));
  for (const DiskPart& part : tensor.parts) {
    if (!may_widen && stored.type_of(part.identity) != type)
      throw UserError(
          "'{}' would hold elements of {} and {}, and a tensor has one dtype; convert with --experts as-read",
          tensor.name, name_of(type), name_of(stored.type_of(part.identity)));
  }
  return type;
}

TensorToWrite copied(const DiskTensor& tensor, const StoredWeights& stored) {
  TensorToWrite out{tensor.name, tensor.type, tensor.shape, {}};
  const auto slices = std::make_shared<const std::vector<DiskTensor>>(slices_of(tensor));
  out.slices = std::ssize(*slices);
  out.fill_slice = [slices, &stored](std::int64_t i, std::byte* to) {
    const DiskTensor& slice = (*slices)[static_cast<std::size_t>(i)];
    stored.assemble(slice, to);
    stored.forget(slice);
  };
  return out;
}

TensorToWrite copied(const TensorEntry& entry) {
  return {entry.name, entry.type, entry.shape, [&entry](std::byte* to) {
            if (!entry.bytes.empty()) std::memcpy(to, entry.bytes.data(), entry.bytes.size());
          }};
}

// Of tensors there that have not the type of the one that holds them here.
std::map<std::string, StoredType> types_to_remember(const HuggingFaceModel& model,
                                                    const std::vector<DiskTensor>& canonical) {
  std::map<ParameterIdentity, StoredType> here;
  for (const DiskTensor& tensor : canonical) {
    for (const DiskPart& part : tensor.parts) here[part.identity] = tensor.type;
  }
  std::map<std::string, StoredType> types;
  for (const DiskTensor& tensor : model.tensors) {
    if (tensor.type != here.at(tensor.parts[0].identity)) types[tensor.name] = tensor.type;
  }
  return types;
}

ConvertResult write_from(const Source& source, const ConvertOptions& options) {
  HuggingFaceModel model = source.model;
  std::vector<DiskTensor> tensors;
  Json description;
  if (options.to == CheckpointFormat::weft) {
    tensors = canonical_tensors(model.config);
    for (DiskTensor& tensor : tensors) tensor.type = type_for(tensor, source.stored, true);
    WeftDescription d{model.config.pattern, model.family, model.form, {}, types_to_remember(model, tensors)};
    for (const TensorEntry* other : source.others) d.others.push_back(other->name);
    description = to_json(d);
  } else {
    if (options.experts && *options.experts != model.form.experts) {
      std::map<std::string, StoredType> types;
      for (const DiskTensor& tensor : model.tensors) types[tensor.name] = tensor.type;
      model = with_experts(model, *options.experts);
      for (DiskTensor& tensor : model.tensors) {
        const auto at = types.find(tensor.name);
        tensor.type = at != types.end() ? at->second : type_for(tensor, source.stored, false);
      }
    }
    tensors = model.tensors;
  }

  ConvertResult result{model.family, model.config.pattern, model.form.experts};
  result.tensors_in = source.tensors + source.others.size();
  result.tensors_out = tensors.size() + source.others.size();
  std::vector<TensorToWrite> out;
  for (const DiskTensor& tensor : tensors) {
    out.push_back(copied(tensor, source.stored));
    if (!tensor.copy) result.parameters += tensor.shape.elements();
  }
  for (const TensorEntry* other : source.others) out.push_back(copied(*other));
  for (const TensorToWrite& tensor : out) result.bytes += bytes_of(tensor);

  const SideFiles side_files = read_side_files(options.in);
  NewFolder folder(options.out);
  ShardOptions shards;
  shards.max_bytes = options.max_shard_bytes;
  std::size_t done = 0;
  if (options.progress) {
    shards.written = [&](std::size_t bytes) {
      done += bytes;
      options.progress(done, result.bytes);
    };
  }
  result.files = write_shards(folder.path(), std::move(out), shards);
  write_side_files(folder.path(), side_files);
  if (!description.is_null()) write_file_atomically(folder.path() / "weft.json", description.dump(2) + "\n");
  folder.commit();
  return result;
}

}  // namespace

ConvertResult convert_checkpoint(const ConvertOptions& options) {
  require_new_folder("--out", options.out);
  if (options.from == CheckpointFormat::weft) {
    const WeftWeights weights(options.in);
    return write_from({weights.model(), weights.stored(), weights.tensors().size(), weights.other_tensors()}, options);
  }
  const HuggingFaceWeights weights(options.in);
  return write_from({weights.model(), weights.stored(), weights.model().tensors.size(), weights.other_tensors()},
                    options);
}

}  // namespace weft
