// A world whose ranks are processes that exchange messages: what MPI and TCP have in common.
#pragma once

#include <memory>

#include "weft/comm/control.h"
#include "weft/comm/messages.h"
#include "weft/comm/world.h"

namespace weft {

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
  std::vector<std::string> activities() override { return control_->ask_activities(Control::answer_seconds); }
  void set_status(std::function<std::string()> status) override { control_->activity().set_status(std::move(status)); }

 protected:
  MessageWorld(int rank, int size, std::string transport);

  // Called once: sets the control channel, and the messages between all ranks that make_group uses.
  void use(std::shared_ptr<Control> control, std::unique_ptr<Messages> setup);
  // Says goodbye; called first in the destructor. True if all ranks said goodbye and none failed.
  bool leave();

  // Collective over the members, which have agreed on this group. id: the same on all members, unique to the group,
  // never 0.
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
