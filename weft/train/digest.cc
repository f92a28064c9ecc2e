#include "weft/train/digest.h"

#include <bit>
#include <map>

#include <fmt/format.h>

namespace weft {

namespace {

// Two lanes of 64 bits, each word mixed in by a multiplication and a rotation.
struct Hash {
  std::uint64_t a = 0x9ae16a3b2f90404fu, b = 0xc949d7c7509e6557u;

  void add(std::uint64_t word) {
    a = std::rotl((a ^ word) * 0x9ddfea08eb382d69u, 29) + b;
    b = std::rotl((b + word) * 0xc2b2ae3d27d4eb4fu, 31) ^ a;
  }
  void add(const std::string& text) {
    for (unsigned char c : text) add(std::uint64_t{c});
    add(std::uint64_t{text.size()});
  }
};

}  // namespace

std::string weight_digest(Session& session) {
  std::map<ParameterIdentity, Hash> hashes;
  session.each_parameter([&](const ParameterPart& part, std::span<const double> values) {
    Hash hash;
    for (double value : values) hash.add(std::bit_cast<std::uint64_t>(value == 0 ? 0.0 : value));  // one zero
    hashes[part.identity] = hash;
  });

  // Experts of other ranks: their hashes, in the same order as ours, belong to experts further on or back.
  const Layout& layout = session.options().layout;
  if (layout.divides(layout.expert_ranks())) {
    std::vector<ParameterIdentity> own;
    std::vector<std::int64_t> words;
    for (const auto& [identity, hash] : hashes) {
      if (identity.expert < 0) continue;
      own.push_back(identity);
      words.push_back(static_cast<std::int64_t>(hash.a));
      words.push_back(static_cast<std::int64_t>(hash.b));
    }
    const std::vector<std::int64_t> all =
        own.empty() ? std::vector<std::int64_t>{} : session.gather_from_expert_ranks(words);  // a model without experts
    const std::int64_t experts = session.options().config.experts.experts;
    const std::int64_t first = layout.experts_here(experts).first;
    for (int peer = 0; peer < layout.size_of(layout.expert_ranks()); ++peer)
      for (std::size_t i = 0; i < own.size(); ++i) {
        ParameterIdentity identity = own[i];
        identity.expert += static_cast<int>(layout.experts_at(peer, experts).first - first);
        const std::size_t at = static_cast<std::size_t>(peer) * words.size() + 2 * i;
        hashes[identity] = {static_cast<std::uint64_t>(all[at]), static_cast<std::uint64_t>(all[at + 1])};
      }
  }
  Hash total;
  for (const auto& [identity, hash] : hashes) {
    total.add(to_text(identity));
    total.add(hash.a);
    total.add(hash.b);
  }
  return fmt::format("{:016x}{:016x}", total.a, total.b);
}

}  // namespace weft
