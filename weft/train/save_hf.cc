#include "weft/train/save_hf.h"

#include <algorithm>
#include <cstring>
#include <memory>

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
      const std::int64_t elements = owned.part.elements();
      box_.resize(offset(elements, size));
      const BoxRuns runs = owned.part.runs();
      if (owned.rank == session_.options().layout.rank()) {
        const DType held = parameters_.type_of(owned.tensor, Content::weight);
        for (std::int64_t first = 0; first < elements; first += at_a_time) {
          const std::int64_t count = std::min(at_a_time, elements - first);
          buffer_.resize(offset(count, size_of(held)));
          const std::span<const std::byte> values =
              parameters_.read(owned.tensor, Content::weight, owned.part, first, count, buffer_);
          store(held, values.data(), type, box_.data() + offset(first, size), count);
        }
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
  static constexpr std::int64_t at_a_time = 1 << 20;  // elements

  Session& session_;
  const ModelParameters& parameters_;
  ParameterOwners owners_;
  std::vector<std::byte> box_, buffer_;
};

// Each time that a tensor, or a slice of one, is filled counts; the first `skipped` times nothing happens.
std::vector<TensorToWrite> counted(std::vector<TensorToWrite> tensors, std::size_t& filled, std::size_t skipped) {
  for (TensorToWrite& tensor : tensors) {
    if (tensor.fill)
      tensor.fill = [&filled, skipped, fill = std::move(tensor.fill)](std::byte* out) {
        if (filled >= skipped) fill(out);
        ++filled;
      };
    if (tensor.fill_slice)
      tensor.fill_slice = [&filled, skipped, fill = std::move(tensor.fill_slice)](std::int64_t slice, std::byte* out) {
        if (filled >= skipped) fill(slice, out);
        ++filled;
      };
  }
  return tensors;
}

void fill_all(std::vector<TensorToWrite> tensors) {
  ShardOptions nothing;
  nothing.discard = true;
  write_shards({}, std::move(tensors), nothing);
}

}  // namespace

void require_savable(const char* flag, const std::filesystem::path& to) {
  try {
    const NewFolder trial(to);
  } catch (const RunError& e) {
    throw UserError("{} {}: {}; name a folder that can be made", flag, to.string(), e.what());
  }
}

HuggingFaceSaver::HuggingFaceSaver(const std::filesystem::path& from, const ModelConfig& config, DType compute,
                                   const HuggingFaceOptions& options, const SideFiles& tokenizer) {
  if (!from.empty() && has_weights(from)) {
    from_ = open_model(from);
    from_->open_files();  // a long run must not fail at its end
    folder_ = hugging_face_folder(*from_, options);
    others_ = from_->other_tensors();
  } else if (!from.empty()) {
    folder_ = hugging_face_folder(from, stored_type_of(compute), options);
  } else {
    folder_ = hugging_face_folder(config, stored_type_of(compute), options);
  }
  for (const auto& [name, bytes] : tokenizer) {
    std::erase_if(folder_.side_files, [&](const auto& file) { return file.first == name; });
    folder_.side_files.emplace_back(name, bytes);
  }
}

void HuggingFaceSaver::require_room(const char* flag, const std::filesystem::path& to) const {
  std::size_t bytes = 0;
  for (const TensorToWrite& tensor : tensors({})) bytes += bytes_of(tensor);
  require_free_space(flag, to, static_cast<std::int64_t>(bytes));
}

std::vector<TensorToWrite> HuggingFaceSaver::tensors(const ParameterSource& source) const {
  std::vector<TensorToWrite> tensors;
  for (const DiskTensor& tensor : folder_.model.tensors)
    tensors.push_back(tensor_to_write(tensor, tensor.type, source));
  for (const TensorEntry& other : others_) {
    tensors.push_back({other.name, other.type, other.shape, [&other](std::byte* out) {
                         if (!other.bytes.empty()) std::memcpy(out, other.bytes.data(), other.bytes.size());
                       }});
  }
  return tensors;
}

std::string HuggingFaceSaver::save(Session& session, const std::filesystem::path& to) const {
  const bool first = session.options().layout.rank().value == 0;
  GatheredParameters parameters(session);
  bool source_failed = false;  // what the file system has no part in
  const ParameterSource source = [&](const ParameterIdentity& identity, StoredType type, std::span<std::byte> out) {
    source_failed = true;
    const ParameterPart* const frozen = parameters.frozen(identity);
    if (frozen && from_) {
      // The old file has it to the last bit; here it may be rounded to what the model computes in.
      from_->read(Content::weight, identity, frozen->shape, type, out);
    } else {
      parameters.read(identity, type, out);
      if (first && !all_finite(type, out.data(), std::ssize(out) * 8 / bits_of(type)))
        throw RunError("the model is not written: weights of {} are not finite in {}; lower --lr", to_text(identity),
                       name_of(type));
    }
    source_failed = false;
  };
  if (!first) {
    fill_all(tensors(source));
    const std::int64_t done = 0;
    return session.ranks().gather(std::span(&done, 1))[0] != 0 ? "" : "the first rank cannot write it";
  }
  std::string error;
  std::size_t filled = 0;
  std::unique_ptr<NewFolder> folder;
  try {
    folder = std::make_unique<NewFolder>(to);
    write_shards(folder->path(), counted(tensors(source), filled, 0), {});
    write_side_files(folder->path(), folder_.side_files);
  } catch (const RunError& failure) {
    if (source_failed) throw;
    error = failure.what();
    folder.reset();
    // Other ranks are still sending.
    const std::size_t done = filled;
    filled = 0;
    fill_all(counted(tensors(source), filled, done));
  }
  if (folder) folder->commit();
  const std::int64_t done = error.empty();
  session.ranks().gather(std::span(&done, 1));
  return error;
}

}  // namespace weft
