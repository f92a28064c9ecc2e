// What all ranks must have alike. A mistake in a script, or a file that is not the same on all machines, changes no
// plan: without this the ranks would train a wrong model together.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/train/rank_exchange.h"

namespace weft {

// Thrown by all ranks after they have told each other, with the same message. rank: whose fault it is.
class AgreedError : public UserError {
 public:
  AgreedError(RankId rank, const std::string& message) : UserError("{}", message), rank_(rank) {}
  RankId rank() const { return rank_; }

 private:
  RankId rank_;
};

struct LineDifference {
  RankId rank, other;
  std::string on_rank, on_other;  // the first lines that differ; at most 500 bytes of them
};

// Compares the lines of every rank with those of rank `with[rank]`, rank 0 where `with` is empty. The result is the same
// on all ranks: the first rank whose lines differ; nothing if there is none. All ranks exchange two words, and a few more
// after a difference has been seen, however many lines there are.
std::optional<LineDifference> first_difference(const RankExchange& ranks, std::span<const std::string> lines,
                                               std::span<const RankId> with = {});

// Runs `work`. If it throws a UserError on some rank, all throw an AgreedError with the message of the first of them,
// "rank 1: MESSAGE", or "MESSAGE" where it is the same on all.
void agree_on_errors(const RankExchange& ranks, const std::function<void()>& work);

}  // namespace weft
