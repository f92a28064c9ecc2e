#include "weft/comm/nccl/world.h"

#include <algorithm>
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
      : base_(base), watchdog_(std::make_shared<Watchdog>(base, std::move(library))) {
    base_.set_status([this] { return status(); });
  }
  ~NcclWorld() override { base_.set_status({}); }

  RankId rank() const override { return base_.rank(); }
  int size() const override { return base_.size(); }
  std::unique_ptr<Communicator> make_group(std::span<const RankId> members, const std::string& name,
                                           Device* device) override;
  void abort(const std::string& message) override {
    base_.abort(message);
    watchdog_->wake();
  }
  void throw_if_ended() const override { watchdog_->throw_if_ended(); }
  void set_timeout(double seconds) override { base_.set_timeout(seconds); }
  double timeout() const override { return base_.timeout(); }
  void set_status(std::function<std::string()> status) override {
    const std::lock_guard lock(status_mutex_);
    status_ = std::move(status);
  }
  std::vector<std::string> activities() override { return base_.activities(); }

 private:
  std::string status() const {
    const std::lock_guard lock(status_mutex_);
    std::string text = status_ ? status_() : "";
    const std::string queued = watchdog_->activity();
    return text.empty() || queued.empty() ? text + queued : text + "; " + queued;
  }

  World& base_;
  std::shared_ptr<Watchdog> watchdog_;
  mutable std::mutex status_mutex_;
  std::function<std::string()> status_;
  std::unique_ptr<Stream> stream_;  // for connecting groups; kept, since freeing memory waits for the device
  std::unique_ptr<Memory> memory_;
};

std::unique_ptr<Communicator> NcclWorld::make_group(std::span<const RankId> members, const std::string& name,
                                                    Device* device) {
  if (device == nullptr || !device->asynchronous()) return base_.make_group(members, name, device);
  watchdog_->throw_if_ended();
  std::unique_ptr<Communicator> host = base_.make_group(members, name, nullptr);
  if (host->size() == 1)
    return std::make_unique<NcclCommunicator>(watchdog_, std::move(host), Setup{}, nullptr, *device);
  if (!stream_) {
    stream_ = device->make_stream(1);
    memory_ = device->allocate(static_cast<std::size_t>(2 * size()));
  }
  Setup setup = make_comm(*watchdog_, *host, *device);
  std::unique_ptr<Communicator> thread_group;
  if (setup.threads_share_gpu) thread_group = base_.make_group(members, name, device);
  auto group = std::make_unique<NcclCommunicator>(watchdog_, std::move(host), std::move(setup), std::move(thread_group),
                                                  *device);
  group->connect(*stream_, memory_->data());
  return group;
}

}  // namespace

std::unique_ptr<World> make_world(World& base, std::shared_ptr<const Library> library) {
  return std::make_unique<NcclWorld>(base, std::move(library));
}

}  // namespace nccl

std::unique_ptr<World> make_nccl_world(World& base) {
  // Allows several ranks on one GPU; groups with a GPU per rank are not affected. NCCL reads it when the first
  // communicator is made. Set only once, since other ranks may be threads that read the environment.
  [[maybe_unused]] static const int set = setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  return nccl::make_world(base, nccl::load(process_environment()));
}

std::string nccl_report() {
  try {
    const auto library = nccl::load(process_environment());
    return fmt::format("{} ({})", nccl::version_text(library->version), library->file);
  } catch (const std::exception& error) {
    std::string why = error.what();  // one line, without the list of files tried
    why.resize(std::min(why.find('\n'), why.size()));
    return why;
  }
}

}  // namespace weft
