#include "weft/train/save_hf.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>

#include "weft/base/error.h"

namespace weft {
namespace {

// The parameters of a session one by one, those of experts on other ranks included: all ranks ask for the same ones in
// the same order.
class GatheredParameters {
 public:
  explicit GatheredParameters(Session& session) : session_(session) {
    const std::vector<ParameterTensor>& tensors = session.module().parameters;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      for (const ParameterPart& part : tensors[i].parts) places_[part.identity] = {i, &part};
    }
    const Layout& layout = session.options().layout;
    if (layout.divides(layout.expert_ranks())) {
      experts_here_ = static_cast<int>(layout.experts_here(session.options().config.experts.experts).count);
      expert_rank_ = layout.position_in(layout.expert_ranks());
    }
  }

  // The parameter, if no step changes it; or null.
  const ParameterPart* frozen(const ParameterIdentity& identity) const {
    const Place place = place_of(identity);
    const ParameterTensor& tensor = session_.module().parameters[place.tensor];
    return tensor.trained || tensor.balance_rate > 0 ? nullptr : place.part;
  }

  void read(const ParameterIdentity& identity, double* out) {
    const int owner = identity.expert < 0 || experts_here_ == 0 ? expert_rank_ : identity.expert / experts_here_;
    const Place place = place_of(identity);
    const ParameterPart& part = *place.part;
    const auto count = static_cast<std::size_t>(part.shape.elements());
    if (owner == expert_rank_)
      std::copy_n(tensor(place.tensor).begin() + static_cast<std::ptrdiff_t>(part.offset), count, out);
    if (identity.expert >= 0 && experts_here_ > 0) session_.broadcast_to_expert_ranks(owner, {out, count});
  }

 private:
  struct Place {
    std::size_t tensor;
    const ParameterPart* part;
  };
  // Of an expert elsewhere that of the one here in its stead: every rank has one of the same shape.
  Place place_of(ParameterIdentity identity) const {
    if (identity.expert >= 0 && experts_here_ > 0)
      identity.expert = expert_rank_ * experts_here_ + identity.expert % experts_here_;
    const auto at = places_.find(identity);
    WEFT_CHECK(at != places_.end(), "the model has no parameter {}", to_text(identity));
    return at->second;
  }
  // A tensor holds many parameters, and a layer asks for few tensors in turns.
  const std::vector<double>& tensor(std::size_t index) {
    for (const auto& [number, values] : recent_)
      if (number == index) return values;
    constexpr std::size_t kept = 3;
    if (recent_.size() == kept) recent_.pop_front();
    recent_.emplace_back(index, session_.parameter_values(index));
    return recent_.back().second;
  }

  Session& session_;
  std::map<ParameterIdentity, Place> places_;
  int experts_here_ = 0, expert_rank_ = 0;  // 0: all experts are on every rank
  std::deque<std::pair<std::size_t, std::vector<double>>> recent_;
};

}  // namespace

void require_savable(const std::filesystem::path& to) {
  try {
    const NewFolder trial(to);
  } catch (const RunError& e) {
    throw UserError("--save-hf {}: {}; name a folder that can be made", to.string(), e.what());
  }
}

HuggingFaceSaver::HuggingFaceSaver(const std::filesystem::path& from, std::filesystem::path to)
    : weights_(from), side_files_(read_side_files(from)), to_(std::move(to)) {}

void HuggingFaceSaver::save(Session& session) const {
  GatheredParameters parameters(session);
  const ParameterSource source = [&](const ParameterIdentity& identity, double* out) {
    // The old file has it to the last bit; here it may be rounded to what the model computes in.
    if (const ParameterPart* frozen = parameters.frozen(identity))
      weights_.read(identity, frozen->shape, DType::f64, out);
    else
      parameters.read(identity, out);
  };
  std::vector<TensorToWrite> tensors;
  for (const DiskTensor& tensor : weights_.model().tensors)
    tensors.push_back(tensor_to_write(tensor, tensor.type, source));
  for (const TensorEntry* other : weights_.other_tensors()) {
    tensors.push_back({other->name, other->type, other->shape, [other](std::byte* out) {
                         if (!other->bytes.empty()) std::memcpy(out, other->bytes.data(), other->bytes.size());
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
  write_side_files(folder.path(), side_files_);
  folder.commit();
}

}  // namespace weft
