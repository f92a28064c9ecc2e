#include "weft/data/text_source.h"

#include <algorithm>
#include <filesystem>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/data/permutation.h"

namespace weft {

namespace {

class TextSource final : public TokenSource {
 public:
  TextSource(std::vector<std::int32_t> tokens, const TextDataOptions& options, bool shuffled, const std::string& name)
      : TokenSource(options.seq_length), tokens_(std::move(tokens)), seed_(options.seed), shuffled_(shuffled) {
    const auto size = static_cast<std::int64_t>(tokens_.size());
    windows_ = (size - 1) / length();
    if (windows_ < 1) {
      throw UserError("{} has {} tokens, too few for one sample of {} + 1; use a smaller --seq-length, or more text",
                      name, size, length());
    }
    // One window is sacrificed so that an epoch can start anywhere within the first one.
    if (shuffled_ && windows_ > 1) --windows_;
    slack_ = static_cast<std::uint64_t>(size - 1 - windows_ * length());
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (std::int32_t token : tokens_) hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x100000001b3u;
    // Without the folder: a text stays the same when it is moved.
    identity_ =
        fmt::format("{}, {} tokens ({:016x}), seq_length {}, {}", std::filesystem::path(name).filename().string(), size,
                    hash, length(), shuffled_ ? fmt::format("seed {}", seed_) : "in order");
  }

  std::int64_t samples() const override { return endless; }
  std::string identity() const override { return identity_; }
  void read_sample(std::int64_t sample, std::span<std::int32_t> window) const override {
    const std::int64_t epoch = sample / windows_;
    std::int64_t begin = sample % windows_ * length();
    if (shuffled_) {
      const std::uint64_t key = random_key(seed_, fmt::format("text order, epoch {}", epoch));
      const Permutation order(key, static_cast<std::uint64_t>(windows_));
      begin = static_cast<std::int64_t>(order(static_cast<std::uint64_t>(sample % windows_))) * length();
      begin += static_cast<std::int64_t>(
          random_below(random_key(seed_, "text start"), static_cast<std::uint64_t>(epoch), slack_ + 1));
    }
    std::copy_n(tokens_.begin() + begin, window.size(), window.begin());
  }

 private:
  std::vector<std::int32_t> tokens_;
  std::uint64_t seed_, slack_ = 0;
  bool shuffled_;
  std::int64_t windows_ = 0;
  std::string identity_;
};

}  // namespace

std::size_t held_out_begin(std::string_view text, double held_out) {
  if (!(held_out >= 0 && held_out < 1)) {
    throw UserError("the held-out share of the text is {}; it must be at least 0 and below 1", held_out);
  }
  if (held_out == 0) return text.size();
  auto kept = static_cast<std::size_t>(static_cast<double>(text.size()) * (1 - held_out));
  while (kept < text.size() && (static_cast<unsigned char>(text[kept]) & 0xc0) == 0x80) ++kept;  // no half characters
  // A boundary too far away would shrink the held-out part too much.
  const std::size_t limit = kept + (text.size() - kept) / 4;
  for (std::string_view boundary : {"\n\n", "\n"}) {
    const std::size_t at = text.find(boundary, kept);
    if (at != std::string_view::npos && at + boundary.size() <= limit) return at + boundary.size();
  }
  return kept;
}

DataSplits open_text_data(std::string_view text, const Tokenizer& tokenizer, const TextDataOptions& options,
                          const std::string& name) {
  const std::size_t cut = held_out_begin(text, options.held_out);
  const auto encoded = [&](std::string_view part) {
    try {
      return tokenizer.encode(part);
    } catch (const UserError& error) {
      throw UserError("{}: {}", name, error.what());
    }
  };
  DataSplits result;
  result.train = std::make_unique<TextSource>(encoded(text.substr(0, cut)), options, true, name + " (training part)");
  if (cut < text.size())
    result.valid = std::make_unique<TextSource>(encoded(text.substr(cut)), options, false, name + " (held-out part)");
  return result;
}

}  // namespace weft
