// Which tokens make up sample i: the order of Megatron's GPT data set, bit for bit, so that a run of Megatron's can be
// compared with one of Weft's or continued by it.
//
// The documents of a split, repeated for as many epochs as the samples need, are shuffled and read as one stream of
// tokens. Sample k of the stream is the seq_length + 1 tokens from k * seq_length on, so neighbours share one token; the
// samples are then shuffled too. When less than 80 % of the last epoch would be used, its documents and samples are
// shuffled separately and follow those of the full epochs.
//
// The order is a pure function of the document lengths, seq_length, the seed and the number of samples. The number of
// samples matters only through the number of epochs and whether the last one is separate, so a longer run over the same
// epochs sees the same order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/data/documents.h"

namespace weft {

enum class Split : std::uint8_t { train, valid, test };
constexpr std::array<Split, 3> all_splits = {Split::train, Split::valid, Split::test};
std::string_view name_of(Split split);

// [begin, end) of documents.
struct DocumentRange {
  std::int64_t begin = 0, end = 0;
};

// "99,1,0": shares of train, valid and test; missing ones are 0. UserError for anything else.
std::array<double, 3> parse_split(std::string_view text);
// Boundaries are rounded half to even. Absent (nullopt): the split's share is zero.
std::array<std::optional<DocumentRange>, 3> split_documents(std::array<double, 3> shares, std::int64_t documents);

struct OrderOptions {
  std::int64_t seq_length = 0;
  std::uint32_t seed = 1234;
  // At least this many samples; absent: those of one epoch.
  std::optional<std::int64_t> samples;
};

class MegatronOrder {
 public:
  // UserError when the range has too few tokens for a sample. Messages call the data `name`.
  MegatronOrder(const Documents& documents, DocumentRange range, const OrderOptions& options, const std::string& name);

  std::int64_t samples() const { return static_cast<std::int64_t>(shuffle_.size()); }
  std::int64_t epochs() const { return epochs_; }
  bool separate_final_epoch() const { return separate_; }

  // The seq_length + 1 tokens of sample `index`.
  void read(const Documents& documents, std::int64_t index, std::span<std::int32_t> window) const;

  // Where stream sample k begins: an index into document_index() and a token offset in that document.
  struct Start {
    std::int64_t document, offset;
  };
  Start start(std::int64_t k) const;
  std::span<const std::int32_t> document_index() const { return document_index_; }
  std::span<const std::uint32_t> shuffle_index() const { return shuffle_; }

 private:
  std::int64_t seq_length_, epochs_ = 1;
  bool separate_ = false;
  std::vector<std::int32_t> document_index_;  // all epochs
  std::vector<std::int64_t> ends_;            // tokens up to and including document_index_[i]
  std::vector<std::uint32_t> shuffle_;
};

// A mixture of data sets: sample t comes from the one furthest below its share. Weights need not sum to one.
struct Blend {
  std::vector<std::int16_t> dataset;
  std::vector<std::int64_t> sample;  // running number within the data set
};
std::vector<double> normalize_weights(std::span<const double> weights);
Blend blend(std::span<const double> weights, std::int64_t samples);

}  // namespace weft
