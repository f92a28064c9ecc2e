#include "weft/train/rank_exchange.h"

#include "weft/comm/host_stream.h"

namespace weft {

RankExchange::RankExchange(World* world, const std::string& name)
    : world_(world), group_(world ? world->make_group_of_all(name) : nullptr) {}

std::vector<std::int64_t> RankExchange::gather(std::span<const std::int64_t> words) const {
  if (!world_) return {words.begin(), words.end()};
  std::vector<std::int64_t> own(words.begin(), words.end());
  std::vector<std::int64_t> all(own.size() * static_cast<std::size_t>(world_->size()));
  HostStream host;
  group_->all_gather(host, Tensor(reinterpret_cast<std::byte*>(own.data()), DType::i64, {std::ssize(own)}),
                     Tensor(reinterpret_cast<std::byte*>(all.data()), DType::i64, {std::ssize(all)}));
  return all;
}

void RankExchange::send_to_first(RankId from, std::span<std::byte> bytes) const {
  if (!world_ || from.value == 0) return;
  HostStream host;
  const Tensor data(bytes.data(), DType::u8, {std::ssize(bytes)});
  if (world_->rank() == from) group_->send(host, data, 0);
  if (world_->rank().value == 0) group_->receive(host, data, static_cast<int>(from.value));
}

void RankExchange::spread(RankId from, std::span<std::byte> bytes) const {
  if (!world_) return;
  HostStream host;
  group_->broadcast(host, Tensor(bytes.data(), DType::u8, {std::ssize(bytes)}), static_cast<int>(from.value));
}

void RankExchange::wait_for_all() const {
  if (!world_) return;
  HostStream host;
  group_->barrier(host);
}

}  // namespace weft
