// Messages of one group over TCP.
#pragma once

#include <memory>
#include <vector>

#include "weft/comm/messages.h"
#include "weft/comm/tcp/control.h"

namespace weft {

class TcpMessages : public Messages {
 public:
  // members: the ranks in the world, by peer.
  TcpMessages(std::shared_ptr<TcpControl> control, std::uint64_t group, std::vector<int> members);
  ~TcpMessages() override;

  void send(int peer, int tag, const std::byte* data, std::int64_t bytes) override;
  void receive(int peer, int tag, std::byte* data, std::int64_t bytes, std::int64_t width) override;
  Outcome wait(double seconds) override;
  std::vector<int> pending_peers() const override;
  const std::optional<Mismatch>& mismatch() const override { return batch_.mismatch; }
  void abandon() override;

 private:
  void post(const Posted& message);

  std::shared_ptr<TcpControl> control_;
  std::uint64_t group_;
  std::vector<int> members_;
  PostedBatch batch_;
  std::vector<std::unique_ptr<Posted>> posted_;  // kept for reuse
  std::size_t used_ = 0;
};

}  // namespace weft
