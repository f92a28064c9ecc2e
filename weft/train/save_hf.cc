#include "weft/train/save_hf.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "weft/base/error.h"
#include "weft/train/parameter_owners.h"

namespace weft {
namespace {

// The parameters of a session one by one, those of other ranks included: all ranks ask for the same ones in the same
// order, and the first gets them.
class GatheredParameters {
 public:
  explicit GatheredParameters(Session& session)
      : session_(session), parameters_(session.parameters()), owners_(session.options()) {}

  // The parameter, if no step changes it; or null.
  const ParameterPart* frozen(const ParameterIdentity& identity) const {
    const OwnedPart& first = owners_.of(identity).front();
    return first.changes ? nullptr : &first.part;
  }

  // All elements, in that type; as many rows as there is room for: those that pad the vocabulary stay out. Each box is
  // converted by its owner.
  void read(const ParameterIdentity& identity, StoredType type, std::span<std::byte> out) {
    const std::size_t size = static_cast<std::size_t>(bits_of(type)) / 8;
    const auto room = static_cast<std::int64_t>(out.size() / size);
    for (const OwnedPart& owned : owners_.of(identity)) {
      box_.resize(static_cast<std::size_t>(owned.part.elements()) * size);
      const BoxRuns runs = owned.part.runs();
      if (owned.rank == session_.options().layout.rank()) {
        const HostTensor& values = tensor(owned.tensor);
        for (std::int64_t r = 0; r < runs.size(); ++r)
          store(values.dtype, values.at(runs[r].tensor), type, box_.data() + offset(r * runs[r].count, size),
                runs[r].count);
      }
      session_.ranks().send_to_first(owned.rank, box_);
      for (std::int64_t r = 0; r < runs.size(); ++r)
        if (const std::int64_t count = std::min(runs[r].count, room - runs[r].logical); count > 0)
          std::memcpy(out.data() + offset(runs[r].logical, size), box_.data() + offset(r * runs[r].count, size),
                      offset(count, size));
    }
  }

 private:
  static std::size_t offset(std::int64_t elements, std::size_t size) {
    return static_cast<std::size_t>(elements) * size;
  }
  // A tensor holds many parameters, and a layer asks for few tensors in turns.
  const HostTensor& tensor(TensorId id) {
    for (const auto& [known, values] : recent_)
      if (known == id) return values;
    constexpr std::size_t kept = 3;
    if (recent_.size() == kept) recent_.pop_front();
    recent_.emplace_back(id, parameters_.read(id, Content::weight));
    return recent_.back().second;
  }

  Session& session_;
  const ModelParameters& parameters_;
  ParameterOwners owners_;
  std::vector<std::byte> box_;
  std::deque<std::pair<TensorId, HostTensor>> recent_;
};

}  // namespace

void require_savable(const std::filesystem::path& to) {
  try {
    const NewFolder trial(to);
  } catch (const RunError& e) {
    throw UserError("--save-hf {}: {}; name a folder that can be made", to.string(), e.what());
  }
}

HuggingFaceSaver::HuggingFaceSaver(const std::filesystem::path& from, const ModelConfig& config, DType compute,
                                   const HuggingFaceOptions& options, std::filesystem::path to)
    : to_(std::move(to)) {
  if (!from.empty() && has_weights(from)) {
    from_ = open_model(from);
    folder_ = hugging_face_folder(*from_, options);
  } else if (!from.empty()) {
    folder_ = hugging_face_folder(from, stored_type_of(compute), options);
  } else {
    folder_ = hugging_face_folder(config, stored_type_of(compute), options);
  }
}

void HuggingFaceSaver::save(Session& session) const {
  GatheredParameters parameters(session);
  const ParameterSource source = [&](const ParameterIdentity& identity, StoredType type, std::span<std::byte> out) {
    const ParameterPart* const frozen = parameters.frozen(identity);
    if (!frozen || !from_) return parameters.read(identity, type, out);
    // The old file has it to the last bit; here it may be rounded to what the model computes in.
    from_->read(Content::weight, identity, frozen->shape, type, out);
  };
  std::vector<TensorToWrite> tensors;
  for (const DiskTensor& tensor : folder_.model.tensors)
    tensors.push_back(tensor_to_write(tensor, tensor.type, source));
  const std::vector<TensorEntry> others = from_ ? from_->other_tensors() : std::vector<TensorEntry>();
  for (const TensorEntry& other : others) {
    tensors.push_back({other.name, other.type, other.shape, [&other](std::byte* out) {
                         if (!other.bytes.empty()) std::memcpy(out, other.bytes.data(), other.bytes.size());
                       }});
  }
  ShardOptions shards;
  if (session.options().layout.rank().value != 0) {
    shards.discard = true;
    write_shards({}, std::move(tensors), shards);
    return;
  }
  NewFolder folder(to_);
  write_shards(folder.path(), std::move(tensors), shards);
  write_side_files(folder.path(), folder_.side_files);
  folder.commit();
}

}  // namespace weft
