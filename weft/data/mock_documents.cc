#include "weft/data/mock_documents.h"

#include "weft/base/error.h"

namespace weft {

namespace {

constexpr __uint128_t wide(std::uint64_t high, std::uint64_t low) { return (__uint128_t{high} << 64) | low; }

// numpy's default_rng(0), a PCG64 (XSL-RR): its state after seeding with 0, and its two kinds of draws.
class NumpyDefaultRng0 {
 public:
  // 64 bits are drawn at a time; the low half is used first.
  std::uint32_t next32() {
    if (has_high_) {
      has_high_ = false;
      return high_;
    }
    const std::uint64_t both = next64();
    high_ = static_cast<std::uint32_t>(both >> 32);
    has_high_ = true;
    return static_cast<std::uint32_t>(both);
  }

  // Uniform in [0, bound): Lemire's multiplication, which redraws the few values that would be too likely.
  std::uint32_t below(std::uint32_t bound) {
    std::uint64_t product = std::uint64_t{next32()} * bound;
    const std::uint32_t threshold = (0u - bound) % bound;
    while (static_cast<std::uint32_t>(product) < threshold) product = std::uint64_t{next32()} * bound;
    return static_cast<std::uint32_t>(product >> 32);
  }

 private:
  std::uint64_t next64() {
    state_ = state_ * wide(0x2360ed051fc65da4u, 0x4385df649fccf645u) + wide(0x418ddadb3af71a82u, 0x588133bc447873a9u);
    const auto folded = static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_);
    const auto turn = static_cast<unsigned>(state_ >> 122);
    return (folded >> turn) | (folded << (-turn & 63u));
  }

  __uint128_t state_ = wide(0x1aa1b5345996452du, 0x09585eb7a69561e3u);
  std::uint32_t high_ = 0;
  bool has_high_ = false;
};

}  // namespace

MockDocuments::MockDocuments(std::int64_t vocabulary_size, std::int32_t eod)
    : vocabulary_size_(vocabulary_size), eod_(eod), lengths_(100000) {
  WEFT_CHECK(vocabulary_size > 0 && eod >= 0 && eod < vocabulary_size, "eod {} of {}", eod, vocabulary_size);
  NumpyDefaultRng0 random;
  for (std::int32_t& length : lengths_) length = static_cast<std::int32_t>(1 + random.below(4095));
}

void MockDocuments::read(std::int64_t document, std::int64_t offset, std::span<std::int32_t> out) const {
  const std::int64_t last = length(document) - 1;
  WEFT_CHECK(offset >= 0 && offset + static_cast<std::int64_t>(out.size()) <= last + 1, "offset {} of {}", offset,
             last);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t at = offset + static_cast<std::int64_t>(i);
    out[i] = at == last ? eod_ : static_cast<std::int32_t>((at + 1) % vocabulary_size_);
  }
}

std::string MockDocuments::identity() const { return fmt::format("mock documents of {} ids", vocabulary_size_); }

}  // namespace weft
