// A world whose ranks are processes that exchange messages: what MPI's and TCP's have in common.
#pragma once

#include <memory>

#include <signal.h>

#include "weft/comm/control.h"
#include "weft/comm/messages.h"
#include "weft/comm/world.h"

namespace weft {

// Blocks SIGTERM for this thread and all it starts, so that the control thread can take it; not where the program has
// plans of its own for it.
class SigtermBlock {
 public:
  SigtermBlock();
  ~SigtermBlock();
  SigtermBlock(const SigtermBlock&) = delete;
  SigtermBlock& operator=(const SigtermBlock&) = delete;
  bool blocked() const { return blocked_; }

 private:
  bool blocked_ = false;
  sigset_t before_{};
};

class MessageWorld : public World {
 public:
  RankId rank() const override { return RankId(rank_); }
  int size() const override { return size_; }
  std::unique_ptr<Communicator> make_group(std::span<const RankId> members, const std::string& name,
                                           Device* device) override;
  void abort(const std::string& message) override { control_->fail(message); }
  void throw_if_ended() const override { control_->throw_if_ended(); }
  void set_timeout(double seconds) override;
  double timeout() const override { return control_->timeout(); }
  std::vector<std::string> standings() override { return control_->ask_standings(Control::answer_seconds); }
  void set_status(std::function<std::string()> status) override { control_->standing().set_status(std::move(status)); }

 protected:
  MessageWorld(int rank, int size, std::string transport);

  // To be called once: the channel of the run, and messages between all ranks for make_group.
  void use(std::shared_ptr<Control> control, std::unique_ptr<Messages> setup);
  // Says goodbye; to be called first in the destructor. True when all ranks came to it and none has failed.
  bool leave();

  // Collective over the members, which have agreed that they mean this group. id: the same on all of them, and theirs
  // alone; never 0.
  virtual std::unique_ptr<Messages> open_group(std::span<const RankId> members, std::uint64_t id) = 0;

 private:
  std::uint64_t agree_on_group(std::span<const RankId> members, const std::string& name);

  int rank_, size_;
  std::string transport_;
  int exceptions_;
  std::shared_ptr<Control> control_;  // groups hold it too
  std::unique_ptr<Messages> setup_;
  std::uint32_t groups_led_ = 0;  // groups whose first member this rank is
};

}  // namespace weft
