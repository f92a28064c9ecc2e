#include "weft/train/digest.h"

#include <bit>
#include <span>

#include <fmt/format.h>

#include "weft/base/random.h"

namespace weft {

namespace {

// A sum of what single elements hash to, so that ranks may add up theirs in any order.
struct Sum {
  std::uint64_t a = 0, b = 0;

  void add(std::uint64_t key, std::int64_t index, double number) {
    const std::uint64_t bits = std::bit_cast<std::uint64_t>(number == 0 ? 0.0 : number);  // one zero
    const std::uint64_t place = mixed(key + static_cast<std::uint64_t>(index) * 0x9e3779b97f4a7c15u);
    a += mixed(place ^ bits);
    b += mixed(std::rotl(place, 32) + bits * 0xc2b2ae3d27d4eb4fu);
  }

 private:
  // A bijection in which every bit of the result depends on every bit of the word.
  static std::uint64_t mixed(std::uint64_t word) {
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return word ^ (word >> 31);
  }
};

std::string digest_of(Session& session, std::span<const Content> contents) {
  Sum sum;
  const ModelParameters& parameters = session.parameters();
  const std::vector<ParameterTensor>& tensors = session.module().parameters;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorId id(static_cast<std::int64_t>(i));
    if (!session.options().layout.owns(tensors[i].placement)) continue;
    for (Content content : contents) {
      if (!parameters.has(id, content)) continue;
      parameters.each(id, content, [&](const ParameterPart& piece, const HostTensor& values) {
        const std::uint64_t key = random_key(static_cast<std::uint64_t>(content), to_text(piece.identity));
        each_number(piece, values, [&](std::int64_t index, double number) { sum.add(key, index, number); });
      });
    }
  }
  const std::int64_t words[] = {static_cast<std::int64_t>(sum.a), static_cast<std::int64_t>(sum.b)};
  const std::vector<std::int64_t> all = session.ranks().gather(words);
  std::uint64_t total[2] = {};
  for (std::size_t i = 0; i < all.size(); ++i) total[i % 2] += static_cast<std::uint64_t>(all[i]);
  return fmt::format("{:016x}{:016x}", total[0], total[1]);
}

}  // namespace

std::string weight_digest(Session& session) {
  constexpr Content weight = Content::weight;
  return digest_of(session, {&weight, 1});
}

std::string state_digest(Session& session) { return digest_of(session, optimizer_states); }

}  // namespace weft
