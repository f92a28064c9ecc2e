#include "weft/train/rank_agreement.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "weft/base/checksum.h"

namespace weft {

namespace {

constexpr std::size_t longest_text = 504;  // with its end a multiple of a word

// The texts of all ranks, each cut to `longest_text` bytes.
std::vector<std::string> gather_texts(const RankExchange& ranks, const std::string& text) {
  std::array<std::int64_t, longest_text / 8 + 1> words{};
  std::memcpy(words.data(), text.data(), std::min(text.size(), longest_text));
  const std::vector<std::int64_t> all = ranks.gather(words);
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < all.size(); at += words.size())
    texts.emplace_back(reinterpret_cast<const char*>(&all[at]));
  return texts;
}

std::int64_t checksum_of_lines(std::span<const std::string> lines) {
  std::string sums;
  for (const std::string& line : lines) sums += checksum_text(checksum_of(line));
  return static_cast<std::int64_t>(checksum_of(sums));
}

}  // namespace

std::optional<LineDifference> first_difference(const RankExchange& ranks, std::span<const std::string> lines,
                                               std::span<const RankId> with) {
  const std::int64_t own[] = {checksum_of_lines(lines), std::ssize(lines)};
  const std::vector<std::int64_t> all = ranks.gather(own);
  std::size_t rank = 0, other = 0;
  for (std::size_t r = 0; r < all.size() / 2; ++r) {
    const std::size_t w = with.empty() ? 0 : with[r].index();
    if (all[2 * r] == all[2 * w] && all[2 * r + 1] == all[2 * w + 1]) continue;
    rank = r;
    other = w;
    break;
  }
  if (rank == other) return {};
  // The first `same` lines are equal, the first `differ` are not.
  std::int64_t same = 0, differ = std::min(all[2 * rank + 1], all[2 * other + 1]) + 1;
  while (same + 1 < differ) {
    const std::int64_t middle = (same + differ) / 2;
    const std::int64_t sum = checksum_of_lines(lines.first(static_cast<std::size_t>(std::min(middle, own[1]))));
    const std::vector<std::int64_t> sums = ranks.gather(std::span(&sum, 1));
    (sums[rank] == sums[other] ? same : differ) = middle;
  }
  const std::vector<std::string> texts =
      gather_texts(ranks, same < own[1] ? lines[static_cast<std::size_t>(same)] : std::string());
  return LineDifference{RankId(static_cast<std::int64_t>(rank)), RankId(static_cast<std::int64_t>(other)), texts[rank],
                        texts[other]};
}

void agree_on_errors(const RankExchange& ranks, const std::function<void()>& work) {
  std::string message;
  try {
    work();
  } catch (const UserError& error) {
    message = error.what();
    if (ranks.ranks() == 1) throw;
  }
  const std::int64_t own[] = {message.empty() ? 0 : 1, static_cast<std::int64_t>(checksum_of(message))};
  const std::vector<std::int64_t> all = ranks.gather(own);
  std::size_t first = 0;
  while (first < all.size() && all[first] == 0) first += 2;
  if (first == all.size()) return;
  bool common = first == 0;
  for (std::size_t at = 0; at < all.size(); at += 2) common &= all[at] == 1 && all[at + 1] == all[1];
  const RankId rank(static_cast<std::int64_t>(first / 2));
  std::string text = gather_texts(ranks, message)[first / 2];
  if (own[1] == all[first + 1]) text = message;  // not only its beginning
  throw AgreedError(rank, common ? text : fmt::format("rank {}: {}", rank.value, text));
}

}  // namespace weft
