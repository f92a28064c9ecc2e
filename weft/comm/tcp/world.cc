#include "weft/base/error.h"
#include "weft/comm/message_world.h"
#include "weft/comm/tcp/control.h"
#include "weft/comm/tcp/messages.h"
#include "weft/comm/tcp/rendezvous.h"
#include "weft/comm/tcp_world.h"

namespace weft {

namespace {

class TcpWorld : public MessageWorld {
 public:
  TcpWorld(int rank, int size, std::vector<Socket> peers, Sigterm sigterm)
      : MessageWorld(rank, size, "TCP"), sigterm_(sigterm) {
    control_ = std::make_shared<TcpControl>(rank, size, std::move(peers), sigterm_.control());
    std::vector<int> everyone;
    for (int each = 0; each < size; ++each) everyone.push_back(each);
    use(control_, std::make_unique<TcpMessages>(control_, 0, std::move(everyone)));
  }

  ~TcpWorld() override {
    leave();
    use(nullptr, nullptr);
    control_.reset();  // ends its thread, unless a group outlives its world
  }

 private:
  std::unique_ptr<Messages> open_group(std::span<const RankId> members, std::uint64_t id) override {
    std::vector<int> ranks;
    for (const RankId member : members) ranks.push_back(member.value);
    return std::make_unique<TcpMessages>(control_, id, std::move(ranks));
  }

  SigtermBlock sigterm_;
  std::shared_ptr<TcpControl> control_;
};

}  // namespace

std::unique_ptr<World> make_tcp_world(const Launch& launch, const Environment& environment, double timeout,
                                      Sigterm sigterm) {
  WEFT_CHECK(timeout > 0, "the timeout must be positive, not {} seconds", timeout);
  std::vector<Socket> peers(1);
  if (launch.size > 1) {
    const MasterAddress master = find_master_address(launch, environment);
    peers = connect_ranks(launch.rank, launch.size, master, timeout);
  }
  auto world = std::make_unique<TcpWorld>(launch.rank, launch.size, std::move(peers), sigterm);
  world->set_timeout(timeout);
  return world;
}

}  // namespace weft
