#include "weft/data/megatron_source.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/data/indexed_dataset.h"
#include "weft/data/mock_documents.h"

namespace weft {

namespace {

using SharedDocuments = std::shared_ptr<const Documents>;

// One split of one data set.
class OrderedSource final : public TokenSource {
 public:
  OrderedSource(SharedDocuments documents, DocumentRange range, const OrderOptions& options, const std::string& name)
      : TokenSource(options.seq_length),
        documents_(std::move(documents)),
        order_(*documents_, range, options, name),
        identity_(fmt::format("{}, documents {}-{}, seq_length {}, seed {}, {} epochs{}", documents_->identity(),
                              range.begin, range.end, options.seq_length, options.seed, order_.epochs(),
                              order_.separate_final_epoch() ? " (the last apart)" : "")) {}

  std::int64_t samples() const override { return order_.samples(); }
  std::string identity() const override { return identity_; }
  void read_sample(std::int64_t sample, std::span<std::int32_t> window) const override {
    order_.read(*documents_, sample, window);
  }

 private:
  SharedDocuments documents_;
  MegatronOrder order_;
  std::string identity_;
};

class BlendedSource final : public TokenSource {
 public:
  BlendedSource(std::vector<std::unique_ptr<OrderedSource>> parts, std::span<const double> weights,
                std::int64_t samples)
      : TokenSource(parts.front()->length()), parts_(std::move(parts)), blend_(blend(weights, samples)) {
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < parts_.size(); ++i)
      texts.push_back(fmt::format("{} {}", weights[i], parts_[i]->identity()));
    identity_ = "blend of " + join(texts, "; ");
  }

  std::int64_t samples() const override { return static_cast<std::int64_t>(blend_.sample.size()); }
  std::string identity() const override { return identity_; }
  void read_sample(std::int64_t sample, std::span<std::int32_t> window) const override {
    const auto at = static_cast<std::size_t>(sample);
    parts_[static_cast<std::size_t>(blend_.dataset[at])]->read_sample(blend_.sample[at], window);
  }

 private:
  std::vector<std::unique_ptr<OrderedSource>> parts_;
  Blend blend_;
  std::string identity_;
};

// The data sets of a path, one split of each.
struct NamedDocuments {
  SharedDocuments documents;
  DocumentRange range;
  std::string name;
};

// With weights, each data set makes 0.5 % more samples than its share, so that rounding in the blend never exhausts it.
constexpr double surplus = 0.005;

std::unique_ptr<TokenSource> open_split(const std::vector<NamedDocuments>& parts, std::span<const double> weights,
                                        OrderOptions options, std::int64_t samples) {
  if (parts.size() == 1 && weights.empty()) {
    options.samples = samples;
    return std::make_unique<OrderedSource>(parts[0].documents, parts[0].range, options, parts[0].name);
  }
  const auto normal = normalize_weights(weights);
  std::vector<std::unique_ptr<OrderedSource>> sources;
  std::vector<double> shares(normal);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (weights.empty()) {
      options.samples.reset();
    } else {
      const double target = std::ceil(static_cast<double>(samples) * normal[i]);
      total += static_cast<std::int64_t>(target);
      options.samples = static_cast<std::int64_t>(std::ceil(target * (1 + surplus)));
    }
    sources.push_back(std::make_unique<OrderedSource>(parts[i].documents, parts[i].range, options, parts[i].name));
    if (weights.empty()) {
      shares.push_back(static_cast<double>(sources.back()->samples()));
      total += sources.back()->samples();
    }
  }
  if (weights.empty()) {
    if (total < samples) {
      throw UserError(
          "--data-path names {} data sets without weights, which have {} samples in one epoch, but the run needs {}; "
          "put a weight before each prefix to repeat them, or train for fewer iterations",
          parts.size(), total, samples);
    }
    total = samples;
  }
  return std::make_unique<BlendedSource>(std::move(sources), shares, total);
}

std::unique_ptr<TokenSource>& slot(DataSplits& splits, Split split) {
  return split == Split::train ? splits.train : split == Split::valid ? splits.valid : splits.test;
}

// `wanted`: the one split to open, with all documents; absent: all splits, divided by options.split.
void open_path(DataSplits& result, const MegatronDataOptions& options, const std::vector<std::string>& words,
               std::optional<Split> wanted) {
  DataPath path = parse_data_path(words);
  if (wanted && path.prefixes.size() == 1) path.weights.clear();  // as Megatron does
  const OrderOptions order{.seq_length = options.seq_length, .seed = options.seed, .samples = std::nullopt};
  std::vector<SharedDocuments> documents;
  for (const std::string& prefix : path.prefixes) {
    documents.push_back(std::make_shared<IndexedDataset>(prefix, options.vocabulary_size));
  }
  for (Split split : all_splits) {
    const std::int64_t samples = options.samples[static_cast<std::size_t>(split)];
    if (samples == 0 || (wanted && *wanted != split)) continue;
    std::vector<NamedDocuments> parts;
    for (std::size_t i = 0; i < documents.size(); ++i) {
      DocumentRange range{0, documents[i]->count()};
      std::string name = path.prefixes[i];
      if (!wanted) {
        const auto share = split_documents(parse_split(options.split), range.end)[static_cast<std::size_t>(split)];
        if (!share) continue;
        range = *share;
        name = fmt::format("the {} part of {} (--split {})", name_of(split), name, options.split);
      }
      parts.push_back({documents[i], range, name});
    }
    if (!parts.empty()) slot(result, split) = open_split(parts, path.weights, order, samples);
  }
}

}  // namespace

DataPath parse_data_path(const std::vector<std::string>& words) {
  if (words.empty()) throw UserError("--data-path is empty; give a prefix, or weights and prefixes in turn");
  DataPath path;
  std::vector<std::string> prefixes;
  for (std::size_t i = 0; words.size() % 2 == 0 && i < words.size(); i += 2) {
    double weight = 0;
    if (!parse_double(words[i], weight)) break;
    if (!(weight > 0) || std::isinf(weight)) {
      throw UserError("--data-path: weight {} of {} must be greater than zero", words[i], words[i + 1]);
    }
    path.weights.push_back(weight);
    prefixes.push_back(words[i + 1]);
  }
  if (path.weights.size() * 2 == words.size()) {
    path.prefixes = std::move(prefixes);
    return path;
  }
  // Without weights every word is a prefix. A number among them is a misplaced weight.
  for (const std::string& word : words) {
    double number = 0;
    if (words.size() > 1 && parse_double(word, number)) {
      throw UserError("--data-path {}: give either only prefixes, or a weight before each prefix", join(words, " "));
    }
  }
  path.weights.clear();
  path.prefixes = words;
  return path;
}

DataSplits open_megatron_data(const MegatronDataOptions& options) {
  DataSplits result;
  const bool by_split = std::any_of(options.split_paths.begin(), options.split_paths.end(),
                                    [](const auto& words) { return !words.empty(); });
  if (by_split && !options.data_path.empty()) {
    throw UserError(
        "--data-path cannot be combined with --train-data-path or --valid-data-path; drop one or the other");
  }
  if (!by_split) {
    open_path(result, options, options.data_path, std::nullopt);
    return result;
  }
  for (Split split : all_splits) {
    const auto& words = options.split_paths[static_cast<std::size_t>(split)];
    if (!words.empty()) open_path(result, options, words, split);
  }
  return result;
}

DataSplits open_mock_data(const MockDataOptions& options) {
  const auto documents = std::make_shared<MockDocuments>(options.vocabulary_size, options.eod);
  const auto ranges = split_documents(parse_split(options.split), documents->count());
  DataSplits result;
  for (Split split : all_splits) {
    const auto at = static_cast<std::size_t>(split);
    if (!ranges[at] || options.samples[at] == 0) continue;
    const OrderOptions order{.seq_length = options.seq_length, .seed = options.seed, .samples = options.samples[at]};
    slot(result, split) = std::make_unique<OrderedSource>(documents, *ranges[at], order, "mock data");
  }
  return result;
}

}  // namespace weft
