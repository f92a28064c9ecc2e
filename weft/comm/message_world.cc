#include "weft/comm/message_world.h"

#include <array>
#include <cstring>
#include <exception>

#include "weft/base/error.h"
#include "weft/comm/message_communicator.h"

namespace weft {

namespace {

constexpr double goodbye_after_failure = 2;  // seconds for the others to print their errors

// What ranks send each other before they make a group.
struct GroupNotice {
  std::uint64_t id = 0;  // chosen by the first member
  std::uint64_t members_hash = 0;
  std::int64_t members = 0;
  std::array<char, 240> name{};
};

GroupNotice notice_of(std::span<const RankId> members, const std::string& name) {
  GroupNotice notice;
  notice.members_hash = 14695981039346656037u;  // FNV-1a
  for (const RankId member : members)
    notice.members_hash = (notice.members_hash ^ static_cast<std::uint64_t>(member.value)) * 1099511628211u;
  notice.members = static_cast<std::int64_t>(members.size());
  std::strncpy(notice.name.data(), name.c_str(), notice.name.size() - 1);
  return notice;
}

}  // namespace

MessageWorld::MessageWorld(int rank, int size, std::string transport)
    : rank_(rank), size_(size), transport_(std::move(transport)), exceptions_(std::uncaught_exceptions()) {}

void MessageWorld::use(std::shared_ptr<Control> control, std::unique_ptr<Messages> setup) {
  control_ = std::move(control);
  setup_ = std::move(setup);
}

bool MessageWorld::leave() {
  if (std::uncaught_exceptions() > exceptions_) abort("it ended with an exception");
  const bool all = control_->say_goodbye(goodbye_after_failure);
  return all && !control_->ended().load();
}

void MessageWorld::set_timeout(double seconds) {
  WEFT_CHECK(seconds > 0, "the timeout must be positive, not {} seconds", seconds);
  control_->set_timeout(seconds);
}

std::uint64_t MessageWorld::agree_on_group(std::span<const RankId> members, const std::string& name) {
  // All send to the first member, which answers when it has received all.
  GroupNotice mine = notice_of(members, name);
  std::vector<GroupNotice> theirs(members.size());
  const auto bytes = static_cast<std::int64_t>(sizeof(GroupNotice));
  const auto send = [&](RankId to) { setup_->send(to.value, 0, reinterpret_cast<const std::byte*>(&mine), bytes); };
  const auto receive = [&](std::size_t from) {
    setup_->receive(members[from].value, 0, reinterpret_cast<std::byte*>(&theirs[from]), bytes, 1);
  };
  const auto wait = [&] {
    finish(
        *setup_, *control_, [&] { return fmt::format("make_group of '{}'", name); },
        [](int peer) { return RankId(peer); });
  };
  const auto compare = [&](std::size_t with) {
    const GroupNotice& other = theirs[with];
    if (other.members_hash == mine.members_hash && other.members == mine.members && other.name == mine.name) return;
    const std::string why = fmt::format(
        "rank {} makes group '{}' of {} ranks while rank {} makes group '{}' of {}, or their members differ",
        members[with].value, other.name.data(), other.members, rank_, name, mine.members);
    control_->fail(why);
    throw RunError(why);
  };
  if (members[0].value == rank_) {
    for (std::size_t from = 1; from < members.size(); ++from) receive(from);
    wait();
    for (std::size_t from = 1; from < members.size(); ++from) compare(from);
    mine.id = (static_cast<std::uint64_t>(rank_) + 1) << 32 | groups_led_++;
    for (const RankId to : members.subspan(1)) send(to);
    wait();
    return mine.id;
  }
  send(members[0]);
  receive(0);
  wait();
  compare(0);
  return theirs[0].id;
}

std::unique_ptr<Communicator> MessageWorld::make_group(std::span<const RankId> members, const std::string& name,
                                                       Device* device) {
  if (device && device->asynchronous())
    throw UserError("{} moves host memory only, but group '{}' is on {}: ranks on GPUs need NCCL", transport_, name,
                    device->name());
  const int index = index_in_group(members, rank(), size_, name);
  control_->throw_if_ended();
  const std::uint64_t id = agree_on_group(members, name);
  return std::make_unique<MessageCommunicator>(control_, open_group(members, id), members, index, name);
}

}  // namespace weft
