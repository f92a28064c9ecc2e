#include "weft/comm/local/cluster.h"

#include <exception>
#include <system_error>
#include <thread>

#include "weft/base/error.h"
#include "weft/comm/local/communicator.h"
#include "weft/comm/local/state.h"

namespace weft {

namespace {

class LocalWorld : public World {
 public:
  LocalWorld(std::shared_ptr<LocalState> state, RankId rank) : state_(std::move(state)), rank_(rank) {}

  RankId rank() const override { return rank_; }
  int size() const override { return state_->size(); }

  std::unique_ptr<Communicator> make_group(std::span<const RankId> members, const std::string& name,
                                           Device* device) override {
    const int index = index_in_group(members, rank_, size(), name);
    state_->throw_if_ended();
    return std::make_unique<LocalCommunicator>(state_, state_->join_group(rank_, members, name), members, index, name,
                                               device);
  }

  void abort(const std::string& message) override { state_->fail(rank_, message); }
  void throw_if_ended() const override { state_->throw_if_ended(); }
  void set_timeout(double seconds) override {
    WEFT_CHECK(seconds > 0, "the timeout must be positive, not {} seconds", seconds);
    state_->set_timeout(rank_, seconds);
  }
  double timeout() const override { return state_->timeout(rank_); }
  void set_status(std::function<std::string()> status) override {
    state_->activity(rank_).set_status(std::move(status));
  }
  std::vector<std::string> activities() override { return state_->activities(); }

 private:
  std::shared_ptr<LocalState> state_;
  RankId rank_;
};

}  // namespace

LocalCluster::LocalCluster(int size, const LocalOptions& options)
    : state_(std::make_shared<LocalState>(size, options)) {
  WEFT_CHECK(size >= 1, "a cluster needs at least one rank, not {}", size);
  WEFT_CHECK(options.timeout > 0, "the timeout must be positive, not {} seconds", options.timeout);
  for (int rank = 0; rank < size; ++rank) worlds_.push_back(std::make_unique<LocalWorld>(state_, RankId(rank)));
}

LocalCluster::~LocalCluster() = default;

int LocalCluster::size() const { return state_->size(); }

World& LocalCluster::world(RankId rank) {
  WEFT_CHECK(rank.valid() && rank.value < size(), "there is no rank {} among {}", rank.value, size());
  return *worlds_[rank.index()];
}

void LocalCluster::run(const std::function<void(World&)>& body) {
  std::vector<std::exception_ptr> errors(worlds_.size());
  std::vector<std::thread> threads;
  const auto run_rank = [&](std::size_t i) {
    World& mine = *worlds_[i];
    try {
      body(mine);
    } catch (const std::exception& error) {
      errors[i] = std::current_exception();
      mine.abort(error.what());
    } catch (...) {
      errors[i] = std::current_exception();
      mine.abort("an exception of an unknown type");
    }
  };
  try {
    for (std::size_t i = 0; i < worlds_.size(); ++i) threads.emplace_back(run_rank, i);
  } catch (const std::system_error& error) {
    const RunError why(
        "{} ranks need a thread each, and rank {}'s could not be started ({}): use fewer --ranks, or raise "
        "the limit on processes or memory",
        worlds_.size(), threads.size(), error.what());
    errors[threads.size()] = std::make_exception_ptr(why);
    worlds_[threads.size()]->abort(why.what());
  }
  for (std::thread& thread : threads) thread.join();
  // The rank that failed first has the reason; the others only repeat it.
  if (const std::optional<RankId> first = state_->failed_rank())
    if (errors[first->index()]) std::rethrow_exception(errors[first->index()]);
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace weft
