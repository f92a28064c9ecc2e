#include "weft/comm/nccl/world.h"

#include <cstdlib>

#include "weft/base/error.h"
#include "weft/comm/nccl/communicator.h"
#include "weft/comm/nccl/setup.h"
#include "weft/comm/nccl_world.h"

namespace weft {

namespace nccl {

namespace {

class NcclWorld : public World {
 public:
  NcclWorld(World& base, std::shared_ptr<const Library> library)
      : base_(base), watch_(std::make_shared<Watch>(base, std::move(library))) {
    base_.set_status([this] { return status(); });
  }
  ~NcclWorld() override { base_.set_status({}); }

  RankId rank() const override { return base_.rank(); }
  int size() const override { return base_.size(); }
  std::unique_ptr<Communicator> make_group(std::span<const RankId> members, const std::string& name,
                                           Device* device) override;
  void abort(const std::string& message) override {
    base_.abort(message);
    watch_->wake();
  }
  void throw_if_ended() const override { watch_->throw_if_ended(); }
  void set_timeout(double seconds) override { base_.set_timeout(seconds); }
  double timeout() const override { return base_.timeout(); }
  void set_status(std::function<std::string()> status) override {
    const std::lock_guard lock(status_mutex_);
    status_ = std::move(status);
  }
  std::vector<std::string> standings() override { return base_.standings(); }

 private:
  std::string status() const {
    const std::lock_guard lock(status_mutex_);
    std::string text = status_ ? status_() : "";
    const std::string queued = watch_->standing();
    return text.empty() || queued.empty() ? text + queued : text + "; " + queued;
  }

  World& base_;
  std::shared_ptr<Watch> watch_;
  mutable std::mutex status_mutex_;
  std::function<std::string()> status_;
  std::unique_ptr<Stream> stream_;  // on which groups are connected; kept, since freeing memory waits for the device
  std::unique_ptr<Memory> memory_;
};

std::unique_ptr<Communicator> NcclWorld::make_group(std::span<const RankId> members, const std::string& name,
                                                    Device* device) {
  if (device == nullptr || !device->asynchronous()) return base_.make_group(members, name, device);
  watch_->throw_if_ended();
  std::unique_ptr<Communicator> host = base_.make_group(members, name, nullptr);
  if (host->size() == 1) return std::make_unique<NcclCommunicator>(watch_, std::move(host), Setup{}, nullptr, *device);
  if (!stream_) {
    stream_ = device->make_stream(1);
    memory_ = device->allocate(static_cast<std::size_t>(2 * size()));
  }
  Setup setup = make_link(*watch_, *host, *device);
  std::unique_ptr<Communicator> side_by_side;
  if (setup.side_by_side) side_by_side = base_.make_group(members, name, device);
  auto group =
      std::make_unique<NcclCommunicator>(watch_, std::move(host), std::move(setup), std::move(side_by_side), *device);
  group->connect(*stream_, memory_->data());
  return group;
}

}  // namespace

std::unique_ptr<World> make_world(World& base, std::shared_ptr<const Library> library) {
  return std::make_unique<NcclWorld>(base, std::move(library));
}

}  // namespace nccl

std::unique_ptr<World> make_nccl_world(World& base) {
  // NCCL reads it once, when the first communicator is made; groups whose ranks have a GPU each do not notice it. Once
  // only, since other ranks may be threads that read the environment.
  [[maybe_unused]] static const int set = setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  return nccl::make_world(base, nccl::load(process_environment()));
}

}  // namespace weft
