#include "weft/data/packed_documents.h"

#include <algorithm>

#include <fmt/format.h>

namespace weft {

namespace {

class DocumentSource final : public TokenSource {
 public:
  DocumentSource(std::unique_ptr<TokenSource> source, std::int32_t end, const DocumentRules& rules)
      : TokenSource(source->length()), source_(std::move(source)), end_(end), rules_(rules) {}

  MicroBatch sample_batch(std::int64_t first_sample, int count) const override {
    MicroBatch batch = source_->sample_batch(first_sample, count);
    mark_documents(batch, end_, rules_);
    return batch;
  }
  std::int64_t samples() const override { return source_->samples(); }
  std::string identity() const override {
    return fmt::format("{}; documents end at token {}{}{}{}", source_->identity(), end_,
                       rules_.separate ? ", are separate" : "", rules_.reset_positions ? ", reset positions" : "",
                       rules_.skip_ends ? ", whose ends predict nothing" : "");
  }

 private:
  void read_sample(std::int64_t sample, std::span<std::int32_t> window) const override {
    const MicroBatch one = source_->sample_batch(sample, 1);
    std::copy(one.tokens.begin(), one.tokens.end(), window.begin());
    window.back() = one.labels.back();
  }

  std::unique_ptr<TokenSource> source_;
  std::int32_t end_;
  DocumentRules rules_;
};

}  // namespace

void mark_documents(MicroBatch& batch, std::int32_t end, const DocumentRules& rules) {
  const std::size_t tokens = batch.tokens.size();
  if (rules.separate) batch.boundaries.resize(tokens);
  if (rules.reset_positions) batch.positions.resize(tokens);
  std::size_t begin = 0;
  for (std::size_t t = 0; t < tokens; ++t) {
    const bool ended = t > 0 && batch.tokens[t - 1] == end;
    if (ended || t % static_cast<std::size_t>(batch.length) == 0) begin = t;
    if (rules.separate) batch.boundaries[t] = static_cast<std::int32_t>(begin);
    if (rules.reset_positions) batch.positions[t] = static_cast<std::int32_t>(t - begin);
    if (rules.skip_ends && batch.tokens[t] == end) batch.labels[t] = -1;
  }
}

std::unique_ptr<TokenSource> with_documents(std::unique_ptr<TokenSource> source, std::int32_t end,
                                            const DocumentRules& rules) {
  if (!source || !rules.any()) return source;
  return std::make_unique<DocumentSource>(std::move(source), end, rules);
}

}  // namespace weft
