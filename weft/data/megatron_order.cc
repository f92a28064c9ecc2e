#include "weft/data/megatron_order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/data/numpy_random.h"

namespace weft {

std::string_view name_of(Split split) {
  switch (split) {
    case Split::train:
      return "train";
    case Split::valid:
      return "valid";
    case Split::test:
      return "test";
  }
  WEFT_CHECK(false, "split {}", static_cast<int>(split));
}

std::array<double, 3> parse_split(std::string_view text) {
  const auto parts = split(text, ',');
  std::array<double, 3> shares{};
  if (parts.size() > shares.size()) {
    throw UserError("--split {} has {} shares; give at most three (train,valid,test), like 969,30,1", text,
                    parts.size());
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parse_double(trim(parts[i]), shares[i]) || !(shares[i] >= 0) || std::isinf(shares[i])) {
      throw UserError("--split {}: \"{}\" is not a share; give three numbers, like 969,30,1", text, trim(parts[i]));
    }
  }
  if (shares[0] + shares[1] + shares[2] <= 0) throw UserError("--split {}: all shares are zero", text);
  return shares;
}

std::array<std::optional<DocumentRange>, 3> split_documents(std::array<double, 3> shares, std::int64_t documents) {
  const auto normal = normalize_weights(shares);
  std::array<std::optional<DocumentRange>, 3> ranges;
  double from = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const double to = from + normal[i];
    // std::nearbyint rounds half to even in the default mode, as Python does.
    const auto boundary = [&](double at) {
      return static_cast<std::int64_t>(std::nearbyint(at * static_cast<double>(documents)));
    };
    if (normal[i] > 0) ranges[i] = DocumentRange{boundary(from), boundary(to)};
    from = to;
  }
  return ranges;
}

namespace {

// The documents of `range`, `epochs` times, shuffled together.
void append_shuffled(std::vector<std::int32_t>& index, DocumentRange range, std::int64_t epochs,
                     NumpyRandomState& random) {
  const std::size_t from = index.size();
  index.resize(from + static_cast<std::size_t>(epochs * (range.end - range.begin)));
  const std::span added = std::span(index).subspan(from);
  for (std::size_t i = 0; i < added.size(); ++i) {
    added[i] = static_cast<std::int32_t>(range.begin + static_cast<std::int64_t>(i) % (range.end - range.begin));
  }
  random.shuffle(added);
}

}  // namespace

MegatronOrder::MegatronOrder(const Documents& documents, DocumentRange range, const OrderOptions& options,
                             const std::string& name)
    : seq_length_(options.seq_length) {
  WEFT_CHECK(seq_length_ > 0, "seq_length {}", seq_length_);
  std::int64_t epoch_tokens = 0;
  for (std::int64_t d = range.begin; d < range.end; ++d) epoch_tokens += documents.length(d);
  if (epoch_tokens < 2) {
    throw UserError(
        "{} has {} documents with {} tokens, too few for a sample; give it a larger share in --split, or more data",
        name, range.end - range.begin, epoch_tokens);
  }
  const std::int64_t wanted = options.samples.value_or(0) * seq_length_ + 1;
  epochs_ = std::max<std::int64_t>(1, (wanted + epoch_tokens - 1) / epoch_tokens);

  const std::int64_t before_final = ((epochs_ - 1) * epoch_tokens - 1) / seq_length_;
  if (epochs_ > 1) {
    const std::int64_t in_final = *options.samples - before_final;
    const std::int64_t in_epoch = (epoch_tokens - 1) / seq_length_;
    separate_ = in_final < static_cast<std::int64_t>(0.80 * static_cast<double>(in_epoch));
  }

  NumpyRandomState random(options.seed);
  const std::int64_t entries = epochs_ * (range.end - range.begin);
  WEFT_CHECK(range.end <= std::numeric_limits<std::int32_t>::max(), "{} documents", range.end);
  document_index_.reserve(static_cast<std::size_t>(entries));
  append_shuffled(document_index_, range, separate_ ? epochs_ - 1 : epochs_, random);
  if (separate_) append_shuffled(document_index_, range, 1, random);
  ends_.resize(document_index_.size());
  std::int64_t end = 0;
  for (std::size_t i = 0; i < ends_.size(); ++i) ends_[i] = end += documents.length(document_index_[i]);

  const std::int64_t advances = epochs_ * epoch_tokens - 1;  // tokens that have a successor
  const std::int64_t count = advances / seq_length_;         // tokens that do not fill a sample are dropped
  if (count < 1) {
    throw UserError("{} has {} tokens, too few for one sample of {} + 1; use a smaller --seq-length, or more data",
                    name, epoch_tokens, seq_length_);
  }
  if (count >= std::numeric_limits<std::uint32_t>::max() - 1) {
    throw UserError("{} would have {} samples; at most 4294967293 are supported", name, count);
  }
  shuffle_.resize(static_cast<std::size_t>(count));
  std::iota(shuffle_.begin(), shuffle_.end(), 0u);
  const std::size_t first = separate_ ? static_cast<std::size_t>(before_final) : shuffle_.size();
  random.shuffle(std::span(shuffle_).first(first));
  random.shuffle(std::span(shuffle_).subspan(first));
}

MegatronOrder::Start MegatronOrder::start(std::int64_t k) const {
  const std::int64_t position = k * seq_length_;
  const auto at = std::upper_bound(ends_.begin(), ends_.end(), position);
  WEFT_CHECK(at != ends_.end(), "sample {} begins after the last of {} tokens", k, ends_.back());
  const std::int64_t document = at - ends_.begin();
  return {document, position - (document == 0 ? 0 : ends_[static_cast<std::size_t>(document) - 1])};
}

void MegatronOrder::read(const Documents& documents, std::int64_t index, std::span<std::int32_t> window) const {
  WEFT_CHECK(index >= 0 && index < samples(), "sample {} of {}", index, samples());
  WEFT_CHECK(static_cast<std::int64_t>(window.size()) == seq_length_ + 1, "a window of {}", window.size());
  auto [at, offset] = start(shuffle_[static_cast<std::size_t>(index)]);
  while (!window.empty()) {
    const std::int64_t document = document_index_[static_cast<std::size_t>(at)];
    const auto here = std::min(window.size(), static_cast<std::size_t>(documents.length(document) - offset));
    documents.read(document, offset, window.first(here));
    window = window.subspan(here);
    offset = 0;
    ++at;
  }
}

std::vector<double> normalize_weights(std::span<const double> weights) {
  const double sum = numpy_sum(weights);
  std::vector<double> normal(weights.begin(), weights.end());
  for (double& weight : normal) weight /= sum;
  return normal;
}

Blend blend(std::span<const double> weights, std::int64_t samples) {
  WEFT_CHECK(!weights.empty() && weights.size() < 32767, "{} data sets", weights.size());
  const auto normal = normalize_weights(weights);
  std::vector<std::int64_t> drawn(normal.size());
  Blend result;
  result.dataset.reserve(static_cast<std::size_t>(samples));
  result.sample.reserve(static_cast<std::size_t>(samples));
  for (std::int64_t t = 0; t < samples; ++t) {
    const double due = static_cast<double>(std::max<std::int64_t>(t, 1));
    std::size_t furthest = 0;
    double most = normal[0] * due - static_cast<double>(drawn[0]);
    for (std::size_t i = 1; i < normal.size(); ++i) {
      const double behind = normal[i] * due - static_cast<double>(drawn[i]);
      if (behind > most) {  // a tie goes to the lower index
        most = behind;
        furthest = i;
      }
    }
    result.dataset.push_back(static_cast<std::int16_t>(furthest));
    result.sample.push_back(drawn[furthest]++);
  }
  return result;
}

}  // namespace weft
